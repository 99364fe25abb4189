// Hints to the compiler; lane shuffles of two vectors and what attention builds from them:
// sums of many vectors side by side, and the change between the order of a row and the order of its
// bfloat16 pairs.
#pragma once

#include <utility>

#include "simd.h"

namespace paged_jax {

// Keeps the compiler from loading a value anew at each use: loads would be the bottleneck.
inline Vec in_register(Vec value) {
#if defined(__x86_64__)
  asm("" : "+x"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#endif
  return value;
}

// Lane i of the result is lane Pattern(i) of a and b laid end to end.
template <int (*Pattern)(int), int... I>
inline Vec pick(Vec a, Vec b, std::integer_sequence<int, I...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, Pattern(I)...);
#else
  typedef int32_t Lanes __attribute__((vector_size(kLanes * 4)));
  return __builtin_shuffle(a, b, Lanes{Pattern(I)...});
#endif
}

template <int (*Pattern)(int)>
inline Vec pick(Vec a, Vec b) {
  return pick<Pattern>(a, b, std::make_integer_sequence<int, kLanes>());
}

// Lanes 0 and 1 (2 and 3) of each four, of a and b in turn.
template <int First>
constexpr int turns(int i) {
  return i / 4 * 4 + First + i % 4 / 2 + (i % 2 ? kLanes : 0);
}

// Runs of Size lanes of a and b in turn: the even (odd) ones of each.
template <int Size, int Odd>
constexpr int runs(int i) {
  return (i / Size & ~1) * Size + Odd * Size + i % Size + (i / Size % 2 ? kLanes : 0);
}

template <int Odd>
constexpr int every_second(int i) {
  return 2 * i + Odd;
}

template <int Half>
constexpr int zipped(int i) {
  return Half * kLanes / 2 + i / 2 + (i % 2 ? kLanes : 0);
}

template <int Size>
inline void sum_runs(Vec* sums, int count) {
#pragma GCC unroll 8
  for (int i = 0; i < count; ++i)
    sums[i] = pick<runs<Size, 0>>(sums[2 * i], sums[2 * i + 1]) +
              pick<runs<Size, 1>>(sums[2 * i], sums[2 * i + 1]);
}

// Lane i of the result is the sum of sums[i]'s lanes.
inline Vec sum_each(Vec (&sums)[kLanes]) {
#pragma GCC unroll 8
  for (int i = 0; i < kLanes / 2; ++i)
    sums[i] = pick<turns<0>>(sums[2 * i], sums[2 * i + 1]) +
              pick<turns<2>>(sums[2 * i], sums[2 * i + 1]);
  sum_runs<2>(sums, kLanes / 4);
  if constexpr (kLanes >= 8) sum_runs<4>(sums, kLanes / 8);
  if constexpr (kLanes >= 16) sum_runs<8>(sums, 1);
  return sums[0];
}

// Half of 2 * kLanes elements of a row: floats as they lie, bfloat16 the even or the odd ones.
inline Vec load_half(const float* from, int half) { return load(from + half * kLanes); }
inline Vec load_half(const uint16_t* from, int half) {
  if (half) asm("" : "+r"(from));  // loaded again rather than kept: registers are scarce
  Vec pairs = load_as<Vec>(from);
  return half ? second_of_pair((Bits)in_register(pairs)) : first_of_pair((Bits)pairs);
}

// Puts 2 * kLanes floats into the order in which load_half reads elements of T.
template <class T>
inline void split_halves(const float* from, float* to) {
  Vec a = load(from), b = load(from + kLanes);
  constexpr bool is_pairs = sizeof(T) == 2;
  store(to, is_pairs ? pick<every_second<0>>(a, b) : a);
  store(to + kLanes, is_pairs ? pick<every_second<1>>(a, b) : b);
}

// Undoes split_halves.
template <class T>
inline void join_halves(Vec a, Vec b, float* to) {
  constexpr bool is_pairs = sizeof(T) == 2;
  store(to, is_pairs ? pick<zipped<0>>(a, b) : a);
  store(to + kLanes, is_pairs ? pick<zipped<1>>(a, b) : b);
}

}  // namespace paged_jax

// The sums of a tile of rows and outputs, kept in registers over the inputs.
//
// Weights are widened as they are read. Widening a panel once for all its rows was 6 % slower: the
// loop keeps both multipliers busy as it is, and the copy has to be written and read.
#pragma once

#include "panels.h"

namespace paged_jax {

constexpr int kMaxTileRows = kLanes == 8 ? 6 : 12;  // times two sums: what the registers hold
constexpr int64_t kPrefetchBytes = 1024;

template <class X>
struct Rows {
  const X* first;
  int64_t stride;

  const X* at(int64_t row) const { return first + row * stride; }
};

// Products of bfloat16 read the rows as pairs where such products are one instruction.
template <class W>
constexpr bool kReadsPairs = kHasBf16Dot && std::is_same_v<W, Bfloat16>;
template <class W>
using RowsFor = Rows<std::conditional_t<kReadsPairs<W>, uint32_t, float>>;

template <int R, int P>
struct Sums {
  Vec of[P][R][2];

  Sums() {  // GCC calls memset for `= {}`: 2 % of a tile's time
#pragma GCC unroll 32
    for (int i = 0; i < P * R * 2; ++i) of[i / (R * 2)][i / 2 % R][i % 2] = Vec{};
  }
};

template <int R>
inline void add_products(Vec (&sums)[R][2], const Rows<float>& x, int64_t k, Vec weights,
                         Vec more_weights) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    Vec input = splat(x.at(r)[k]);
    sums[r][0] += input * weights;
    sums[r][1] += input * more_weights;
  }
}

// Adds input k of a panel of floats or int8.
template <int R, class W>
inline void add_input(Vec (&sums)[R][2], const Rows<float>& x, int64_t k, const W* panel) {
  panel += k * kPanelWidth;
  __builtin_prefetch(panel + kPrefetchBytes / sizeof(*panel));
  add_products<R>(sums, x, k, load(panel), load(panel + kLanes));
}

// Adds both inputs of a pair of a bfloat16 panel, or its first alone.
template <int R>
inline void add_pair(Vec (&sums)[R][2], const Rows<float>& x, int64_t pair,
                     const Bfloat16* panel, bool has_second = true) {
  panel += 2 * pair * kPanelWidth;
  __builtin_prefetch(panel + kPrefetchBytes / sizeof(*panel));
  Bits weights = load_as<Bits>(panel), more = load_as<Bits>(panel + kPanelWidth);
  add_products<R>(sums, x, 2 * pair, first_of_pair(weights), first_of_pair(more));
  if (has_second)
    add_products<R>(sums, x, 2 * pair + 1, second_of_pair(weights), second_of_pair(more));
}

template <int R>
inline void add_pair(Vec (&sums)[R][2], const Rows<uint32_t>& x, int64_t pair,
                     const Bfloat16* panel, bool has_second = true) {
  panel += 2 * pair * kPanelWidth;
  __builtin_prefetch(panel + kPrefetchBytes / sizeof(*panel));
  Bits weights = load_as<Bits>(panel), more = load_as<Bits>(panel + kPanelWidth);
  if (!has_second) weights &= 0xffffu, more &= 0xffffu;  // what fills up the pair may be anything
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    Bits input = Bits{} + x.at(r)[pair];
    sums[r][0] = dot_pairs(sums[r][0], input, weights);
    sums[r][1] = dot_pairs(sums[r][1], input, more);
  }
}

// The sums of R rows and P panels.
template <int R, int P, class W>
inline Sums<R, P> sum_tile(const RowsFor<W>& x, int64_t inner, const W* const (&panels)[P]) {
  Sums<R, P> sums;
  if constexpr (std::is_same_v<W, Bfloat16>) {
    for (int64_t pair = 0; pair < inner / 2; ++pair)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) add_pair<R>(sums.of[p], x, pair, panels[p]);
    if (inner % 2)
      for (int p = 0; p < P; ++p) add_pair<R>(sums.of[p], x, inner / 2, panels[p], false);
  } else {
    for (int64_t k = 0; k < inner; ++k)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) add_input<R>(sums.of[p], x, k, panels[p]);
  }
  return sums;
}

}  // namespace paged_jax

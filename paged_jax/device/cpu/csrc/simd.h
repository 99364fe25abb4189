// Vectors of floats as wide as this machine's registers, in GCC's and Clang's own vector types, so
// that the same source builds for AVX-512, AVX2 and Arm. bfloat16 is a uint16_t: the upper half of
// a float.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace paged_jax {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Bits __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Items __attribute__((vector_size(kLanes * 4)));  // two in each lane
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
typedef int8_t Bytes __attribute__((vector_size(kLanes)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));

template <class T>
inline T load_as(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline Vec load(const float* from) { return load_as<Vec>(from); }
inline Vec load(const uint16_t* from) {  // bfloat16
  return (Vec)(__builtin_convertvector(load_as<Halves>(from), Bits) << 16);
}
inline Vec load(const int8_t* from) {
#if defined(__AVX512F__)  // GCC takes the bytes one by one otherwise
  Ints wide = (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
  Ints wide = (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  Ints wide = __builtin_convertvector(load_as<Bytes>(from), Ints);
#endif
  return __builtin_convertvector(wide, Vec);
}

inline void store(float* to, Vec value) { std::memcpy(to, &value, sizeof value); }

inline Vec splat(float value) { return value - Vec{}; }

inline float sum(Vec value) {
  float total = 0;
  for (int i = 0; i < kLanes; ++i) total += value[i];
  return total;
}

// Whether a comparison holds in every lane.
inline bool are_all(Ints comparison) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return _mm256_movemask_epi8((__m256i)comparison) == -1;
#else
  int all = -1;
  for (int i = 0; i < kLanes; ++i) all &= comparison[i];
  return all;
#endif
}

inline Vec largest(Vec a, Vec b) { return a < b ? b : a; }  // NaN in `a` stays
inline Vec smallest(Vec a, Vec b) { return b < a ? b : a; }

// e to the x, to 2 units in the last place, for x within +-87. Source: Cephes' expf.
inline Vec exp_within(Vec x) {
  Vec shifted = x * 1.44269504f + 12582912.0f;  // x / ln 2, rounded: in the lowest bits
  Vec power = shifted - 12582912.0f;
  Vec rest = x - power * 0.693359375f + power * 2.12194440e-4f;
  Vec square = rest * rest;
  Vec series = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  series = series * square + (rest * 8.3334519073e-3f + 4.1665795894e-2f);
  series = series * square + (rest * 1.6666665459e-1f + 5.0000001201e-1f);
  series = series * square + (rest + 1.0f);
  return (Vec)((Bits)series + ((Bits)shifted << 23));
}

// The same for every x; beyond +-87 as at +-87.
inline Vec exp(Vec x) {
  return exp_within(smallest(largest(x, splat(-87.0f)), splat(87.0f)));
}

// Two bfloat16 in each 32-bit lane: the first is the lower half.
inline Vec first_of_pair(Bits pairs) { return (Vec)(pairs << 16); }
inline Vec second_of_pair(Bits pairs) { return (Vec)(pairs & 0xffff0000u); }

// Two integers of 16 bits in each lane, rounded from floats that they can hold.
inline Bits round_pair(Vec first, Vec second) {
#if defined(__AVX512F__)
  Bits low = (Bits)_mm512_cvtps_epi32((__m512)first), high = (Bits)_mm512_cvtps_epi32((__m512)second);
#elif defined(__AVX2__)
  Bits low = (Bits)_mm256_cvtps_epi32((__m256)first), high = (Bits)_mm256_cvtps_epi32((__m256)second);
#else
  Bits low, high;
  for (int i = 0; i < kLanes; ++i)
    low[i] = uint32_t(int32_t(__builtin_nearbyintf(first[i]))),
    high[i] = uint32_t(int32_t(__builtin_nearbyintf(second[i])));
#endif
  return (low & 0xffffu) | high << 16;
}

// sum + a.first * b.first + a.second * b.second, lane by lane.
inline Ints add_pair_products(Ints sum, Bits a, Bits b) {
#if defined(__AVX512BW__)
  return sum + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  Ints first = ((Ints)(a << 16) >> 16) * ((Ints)(b << 16) >> 16);
  return sum + first + ((Ints)a >> 16) * ((Ints)b >> 16);
#endif
}

inline uint32_t bits_of(float value) { return load_as<uint32_t>(&value); }
inline float to_float(float value) { return value; }
inline float to_float(int8_t value) { return value; }
inline float to_float(uint16_t half) {
  uint32_t bits = uint32_t(half) << 16;
  return load_as<float>(&bits);
}

// Round to nearest even; NaN stays NaN.
inline uint16_t to_bfloat16(float value) {
  uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// Whether products of bfloat16 pairs are one instruction. The emulation, for tests on machines
// without it, computes the same sum in float32.
#if defined(__AVX512BF16__) || defined(PAGED_JAX_EMULATE_BF16_DOT)
constexpr bool kHasBf16Dot = true;
#else
constexpr bool kHasBf16Dot = false;
#endif

// Whether products of pairs of integers are twice as fast as those of floats, and of bfloat16.
#if defined(__AVX2__) && (defined(__AVX512BW__) || !defined(__AVX512F__))
constexpr bool kHasPairProducts = !kHasBf16Dot;
#else
constexpr bool kHasPairProducts = false;
#endif

// sum + a.first * b.first + a.second * b.second, lane by lane.
inline Vec dot_pairs(Vec sum, Bits a, Bits b) {
#if defined(__AVX512BF16__)
  return (Vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  sum += second_of_pair(a) * second_of_pair(b);
  return sum + first_of_pair(a) * first_of_pair(b);
#endif
}

}  // namespace paged_jax

// What all of paged attention shares: the arguments of a call, where a token's key and value lie,
// and how scores become weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "simd.h"

namespace paged_jax {

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The arguments of paged_attention; T is float, or uint16_t for the bits of bfloat16.
template <class T>
struct Attention {
  const float* q;             // [tokens, q_heads, head_dim]
  const T* k;                 // [blocks, block_size, kv_heads, head_dim]
  const T* v;                 // like k
  const int32_t* tables;      // [seqs, max_blocks]
  const int32_t* starts;      // [seqs + 1]
  const int32_t* kv_lens;     // [seqs]
  const float* sinks;         // [q_heads], or null
  float* out;                 // like q
  int64_t tokens, seqs, max_blocks, block_size, q_heads, kv_heads, head_dim;
  float scale, softcap;       // softcap 0: none
  int64_t window;             // larger than any context: none

  int64_t group() const { return q_heads / kv_heads; }
  int64_t num_queries(int64_t seq) const { return starts[seq + 1] - starts[seq]; }
  // Position of packed token `token` of sequence `seq`.
  int64_t position(int64_t seq, int64_t token) const {
    return token - starts[seq + 1] + kv_lens[seq];
  }
  int64_t first_seen(int64_t position) const {
    return std::max<int64_t>(0, position - window + 1);
  }
  // Where head `head` of token `token` lies in q and out.
  int64_t at(int64_t token, int64_t head) const { return (token * q_heads + head) * head_dim; }
};

// A row's softmax under way, over a part of its context: sums of weights relative to e^top.
struct Sums {
  float* acc;    // weighted sum of the values
  float* top;    // largest score
  float* total;  // sum of the weights
};

// Where the keys (and values) of positions [start, stop) lie in the pool.
template <class T>
void find_rows(const Attention<T>& call, int64_t seq, int64_t head, int64_t start, int64_t stop,
               int64_t* rows) {
  const int32_t* table = call.tables + seq * call.max_blocks;
  int64_t stride = call.kv_heads * call.head_dim;
  while (start < stop) {
    int64_t block = start / call.block_size, offset = start % call.block_size;
    int64_t count = std::min(call.block_size - offset, stop - start);
    int64_t row = (int64_t(table[block]) * call.block_size + offset) * stride + head * call.head_dim;
    for (int64_t i = 0; i < count; ++i) *rows++ = row + i * stride;
    start += count;
  }
}

// e to the x, for x <= 0: exactly 0 where that is below the smallest normal float.
inline Vec weight(Vec x) { return x < -87.0f ? Vec{} : exp_within(x); }

// tanh(score / softcap) * softcap, to 1e-7 of softcap.
inline Vec cap(Vec score, float softcap) {
  Vec grown = exp(score * (2.0f / softcap));
  return softcap - 2.0f * softcap / (grown + 1.0f);
}

// What a row's acc is to be multiplied by, given its largest score and the sum of its weights. A
// sink is one more score, which has no value.
inline float normaliser(float top, float total, const float* sinks, int64_t head) {
  if (sinks) total += std::exp(sinks[head] - top);
  return total > 0 ? 1 / total : 0;
}

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

enum class Memory { kBlocks, kCopies, kTile, kSums };

// Floats of this thread, kept between calls; [0] is aligned to a cache line.
template <Memory Purpose>
float* workspace(int64_t size) {
  thread_local std::vector<float> floats;
  constexpr int64_t line = 64 / sizeof(float);
  if (int64_t(floats.size()) < size + line) floats.resize(size + line);
  auto address = reinterpret_cast<uintptr_t>(floats.data());
  return floats.data() + (round_up(address, 64) - address) / sizeof(float);
}

}  // namespace paged_jax

// Attention of sequences with several queries: kTileRows rows, a row being one query head of one
// token, pass over the context together, tile by tile.
//
// Everything lies transposed, rows side by side in the lanes: keys and values are then read as they
// lie in the pool, and softmax needs no sum across lanes. Tiles of the context begin at multiples
// of kTile, and a row ignores what it does not see exactly, so that its result does not depend on
// the rows beside it.
#pragma once

#include <utility>

#include "attention.h"

namespace paged_jax {

constexpr int64_t kTileRows = 48;
constexpr int64_t kTile = 64;
constexpr int kFactorsAtOnce = 4;  // a product keeps this many rows of kVecsAtOnce in registers
constexpr int kVecsAtOnce = 3;

// A tile of rows, [first, first + count) of the sequence's rows (token * group + query head).
struct RowTile {
  int64_t seq, head, first, count;

  int64_t num_vecs() const { return (count + kLanes - 1) / kLanes; }
};

// out[i, :] (+)= sum over k of a[i * row_stride + k * k_stride] * b[k, :], for kFactorsAtOnce i and
// V vectors of b and out, whose rows are kTileRows floats.
template <int V, bool Adds>
inline void multiply_tile(const float* a, int64_t row_stride, int64_t k_stride, int64_t count,
                          const float* b, float* out) {
  Vec sums[kFactorsAtOnce][V] = {};
  if (Adds)
#pragma GCC unroll 4
    for (int i = 0; i < kFactorsAtOnce; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) sums[i][v] = load(out + i * kTileRows + v * kLanes);
  for (int64_t k = 0; k < count; ++k) {
    Vec parts[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) parts[v] = in_register(load(b + k * kTileRows + v * kLanes));
#pragma GCC unroll 4
    for (int i = 0; i < kFactorsAtOnce; ++i) {
      Vec factor = splat(a[i * row_stride + k * k_stride]);
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) sums[i][v] += factor * parts[v];
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kFactorsAtOnce; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) store(out + i * kTileRows + v * kLanes, sums[i][v]);
}

// Calls f(V, first) for `vecs` vectors in equal parts, V of them, a constant, from `first` on: a
// part of one alone is half as fast.
template <class F>
void for_parts(int64_t vecs, const F& f) {
  int64_t parts = (vecs + kVecsAtOnce - 1) / kVecsAtOnce, part = (vecs + parts - 1) / parts;
  for (int64_t first = 0; first < vecs; first += part) switch (std::min(vecs - first, part)) {
      case 1: f(std::integral_constant<int, 1>(), first); break;
      case 2: f(std::integral_constant<int, 2>(), first); break;
      default: f(std::integral_constant<int, kVecsAtOnce>(), first);
    }
}

// The same for `rows` rows of a, a multiple of kFactorsAtOnce, and `vecs` vectors.
template <bool Adds>
void multiply(const float* a, int64_t row_stride, int64_t k_stride, int64_t rows, int64_t count,
              int64_t vecs, const float* b, float* out) {
  for (int64_t i = 0; i < rows; i += kFactorsAtOnce)
    for_parts(vecs, [&](auto size, int64_t first) {
      multiply_tile<size, Adds>(a + i * row_stride, row_stride, k_stride, count,
                                b + first * kLanes, out + i * kTileRows + first * kLanes);
    });
}

// The memory of one tile of rows; everything but keys and values is transposed: [..., kTileRows].
// Scores are those of `tokens` tokens.
struct TileState {
  int64_t dim;     // head_dim, rounded up to a multiple of kFactorsAtOnce
  int64_t stride;  // of keys and values: a cache line more, so that columns spread over the cache
  float *q, *acc, *k, *v, *scores;  // [dim], [dim], [kTile, stride], [kTile, stride], [tokens]
  float *top, *total;
  float *first, *last;  // the positions a row sees

  explicit TileState(int64_t head_dim, int64_t tokens = kTile)
      : dim(round_up(head_dim, kFactorsAtOnce)), stride(round_up(dim, 16) + 16) {
    float* next = workspace<Memory::kTile>((2 * dim + tokens + 4) * kTileRows + 2 * kTile * stride);
    auto take = [&next](int64_t size) { return std::exchange(next, next + size); };
    q = take(dim * kTileRows), acc = take(dim * kTileRows), scores = take(tokens * kTileRows);
    k = take(kTile * stride), v = take(kTile * stride);
    top = take(kTileRows), total = take(kTileRows), first = take(kTileRows);
    last = take(kTileRows);
  }
};

// Reads the keys or values of some tokens as floats, and zeros up to a multiple of kFactorsAtOnce.
template <class T>
void read_tile(const T* pool, const int64_t* rows, int64_t count, int64_t head_dim,
               const TileState& state, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    const T* from = pool + rows[i];
    float* row = to + i * state.stride;
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(row + d, load(from + d));
    for (; d < head_dim; ++d) row[d] = to_float(from[d]);
    for (; d < state.dim; ++d) row[d] = 0.0f;
  }
  for (int64_t i = count; i % kFactorsAtOnce; ++i)
    std::fill_n(to + i * state.stride, state.dim, 0.0f);
}

// Scores of what a row does not see become -infinity.
inline void mask(const TileState& state, int64_t vec, int64_t start, int64_t count) {
  Vec first = load(state.first + vec * kLanes), last = load(state.last + vec * kLanes);
  float* scores = state.scores + vec * kLanes;
  for (int64_t i = 0; i < count; ++i, scores += kTileRows) {
    Vec at = splat(float(start + i)), score = load(scores);
    score = at < first ? splat(kMinusInfinity) : score;
    store(scores, at > last ? splat(kMinusInfinity) : score);
  }
}

// Turns one vector of rows' scores into weights and brings their sums up to date.
inline void weigh_tile(const TileState& state, int64_t vec, int64_t count) {
  float* scores = state.scores + vec * kLanes;
  float* at = state.top + vec * kLanes;
  Vec old = load(at), top = old, total = {};
  for (int64_t i = 0; i < count; ++i) top = largest(top, load(scores + i * kTileRows));
  for (int64_t i = 0; i < count; ++i) {
    Vec weights = weight(load(scores + i * kTileRows) - top);
    total += weights;
    store(scores + i * kTileRows, weights);
  }
  Vec decay = weight(old - top);
  store(at, top);
  at = state.total + vec * kLanes;
  store(at, load(at) * decay + total);
  if (std::memcmp(&old, &top, sizeof top) == 0) return;
  float* acc = state.acc + vec * kLanes;
  for (int64_t d = 0; d < state.dim; ++d, acc += kTileRows) store(acc, load(acc) * decay);
}


inline void cap_tile(const TileState& state, int64_t vecs, int64_t count, float softcap) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t vec = 0; vec < vecs; ++vec) {
      float* at = state.scores + i * kTileRows + vec * kLanes;
      store(at, cap(load(at), softcap));
    }
}

// Transposes and scales the queries of a tile and begins its sums.
template <class T>
void begin(const Attention<T>& call, const RowTile& tile, const TileState& state) {
  int64_t group = call.group(), start = call.starts[tile.seq];
  std::fill_n(state.q, state.dim * kTileRows, 0.0f);
  std::fill_n(state.acc, state.dim * kTileRows, 0.0f);
  std::fill_n(state.total, kTileRows, 0.0f);
  std::fill_n(state.top, kTileRows, kLowest);
  for (int64_t row = 0; row < kTileRows; ++row) {
    int64_t of_seq = tile.first + std::min(row, tile.count - 1), token = start + of_seq / group;
    int64_t position = call.position(tile.seq, token);
    state.first[row] = float(call.first_seen(position));
    state.last[row] = float(position);
    if (row >= tile.count) continue;
    const float* q = call.q + call.at(token, tile.head * group + of_seq % group);
    for (int64_t d = 0; d < call.head_dim; ++d) state.q[d * kTileRows + row] = q[d] * call.scale;
  }
}

template <class T>
void end(const Attention<T>& call, const RowTile& tile, const TileState& state) {
  int64_t group = call.group(), start = call.starts[tile.seq];
  for (int64_t row = 0; row < tile.count; ++row) {
    int64_t of_seq = tile.first + row, head = tile.head * group + of_seq % group;
    float factor = normaliser(state.top[row], state.total[row], call.sinks, head);
    float* out = call.out + call.at(start + of_seq / group, head);
    for (int64_t d = 0; d < call.head_dim; ++d) out[d] = state.acc[d * kTileRows + row] * factor;
  }
}

// Attends from a tile of rows to positions [start, stop), which all lie in one tile of the context.
template <class T>
void attend_tile(const Attention<T>& call, const RowTile& tile, const TileState& state,
                 int64_t start, int64_t stop) {
  int64_t rows[kTile], count = stop - start, vecs = tile.num_vecs();
  find_rows(call, tile.seq, tile.head, start, stop, rows);
  read_tile(call.k, rows, count, call.head_dim, state, state.k);
  read_tile(call.v, rows, count, call.head_dim, state, state.v);
  multiply<false>(state.k, state.stride, 1, round_up(count, kFactorsAtOnce), call.head_dim, vecs,
                  state.q, state.scores);
  if (call.softcap > 0) cap_tile(state, vecs, count, call.softcap);
  bool is_whole = state.last[0] >= stop - 1 && state.first[tile.count - 1] <= start;
  for (int64_t vec = 0; vec < vecs; ++vec) {
    if (!is_whole) mask(state, vec, start, count);
    weigh_tile(state, vec, count);
  }
  multiply<true>(state.v, 1, state.stride, state.dim, count, vecs, state.scores, state.acc);
}

// Attends from a tile of rows to all it sees.
template <class T>
void attend_rows(const Attention<T>& call, const RowTile& tile) {
  TileState state(call.head_dim);
  begin(call, tile, state);
  int64_t start = state.first[0], stop = state.last[tile.count - 1] + 1;
  for (int64_t from = start; from < stop; from = (from / kTile + 1) * kTile)
    attend_tile(call, tile, state, from, std::min((from / kTile + 1) * kTile, stop));
  end(call, tile, state);
}

}  // namespace paged_jax

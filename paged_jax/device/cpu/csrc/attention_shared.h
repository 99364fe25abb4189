// Attention of sequences with one query over a split that they share: the same blocks at the same
// positions, as after a common prefix or a fork. Their query rows lie side by side in the lanes,
// and keys and values are read once for kTileRows rows (Juravsky et al. 2024, "Hydragen").
//
// Every sum has attention_decode.h's terms in its order: a row's bits are those it has alone.
#pragma once

#include <tuple>

#include "attention_decode.h"
#include "attention_prefill.h"

namespace paged_jax {

constexpr int64_t kFewestRows = 5 * kLanes / 2;  // fewer are faster each for itself

// Query rows [first_row, first_row + num_rows), kRowsAtOnce at most, of KV head `head`, of those of
// `decodes` (`sharers`) that have the kSplit positions from `start` on in the same blocks.
struct Shared {
  const Decode* decodes;
  const int64_t* sharers;
  int64_t num_sharers, start, head, first_row, num_rows;

  int64_t seq(int64_t i) const { return decodes[sharers[i]].seq; }
  int64_t total_rows() const { return num_sharers * num_rows; }
  int64_t num_vecs() const { return (total_rows() + kLanes - 1) / kLanes; }
  Split split() const { return {seq(0), start, start + kSplit, head, head + 1}; }
};

// A whole split of a decode, and the block that its last token lies in.
struct WholeSplit {
  int64_t split, last_block, decode;

  bool operator<(const WholeSplit& other) const {
    return std::tie(split, last_block, decode) <
           std::tie(other.split, other.last_block, other.decode);
  }
};

template <class T>
bool have_same_blocks(const Attention<T>& call, int64_t split, int64_t seq, int64_t other_seq) {
  int64_t first = split * kSplit / call.block_size;
  int64_t last = ((split + 1) * kSplit - 1) / call.block_size;
  const int32_t* table = call.tables + seq * call.max_blocks;
  return std::equal(table + first, table + last + 1,
                    call.tables + other_seq * call.max_blocks + first);
}

// Calls found(split, decodes) for each whole split that decodes of kFewestRows rows share.
template <class T, class F>
void find_shared(const Attention<T>& call, const std::vector<Decode>& decodes, const F& found) {
  int64_t rows = std::min<int64_t>(kRowsAtOnce, call.group());
  if (int64_t(decodes.size()) * rows < kFewestRows) return;
  std::vector<WholeSplit> all;
  for (size_t i = 0; i < decodes.size(); ++i) {
    const int32_t* table = call.tables + decodes[i].seq * call.max_blocks;
    int64_t split = (decodes[i].start + kSplit - 1) / kSplit;
    for (; split < decodes[i].stop / kSplit; ++split)
      all.push_back({split, table[((split + 1) * kSplit - 1) / call.block_size], int64_t(i)});
  }
  std::sort(all.begin(), all.end());
  std::vector<int64_t> sharers;
  for (size_t first = 0, i = 0; first < all.size(); first = i, sharers.clear()) {
    for (; i < all.size() && all[i].split == all[first].split; ++i) {
      if (all[i].last_block != all[first].last_block) break;
      int64_t seq = decodes[all[i].decode].seq;
      if (have_same_blocks(call, all[i].split, decodes[all[first].decode].seq, seq))
        sharers.push_back(all[i].decode);
    }
    if (int64_t(sharers.size()) * rows >= kFewestRows) found(all[first].split, sharers);
  }
}

// The sum of parts[lane, :], each `size` floats, over the lanes in sum_each's order.
inline Vec join_lanes(const float* parts, int64_t size) {
  Vec sums[kLanes / 4];
  for (int i = 0; i < kLanes / 4; ++i, parts += 4 * size)
    sums[i] = (load(parts) + load(parts + 2 * size)) +
              (load(parts + size) + load(parts + 3 * size));
  for (int count = kLanes / 4; count > 1; count /= 2)
    for (int i = 0; i < count / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  return sums[0];
}

// The scores of kFactorsAtOnce tokens and V vectors of rows: each lane's sums, then joined.
template <int V>
__attribute__((flatten)) void score_tile(const float* k, const TileState& state, int64_t vec,
                                         float* scores) {
  constexpr int64_t size = kFactorsAtOnce * kTileRows;
  alignas(64) float parts[kLanes * size];
  int64_t per_lane = state.dim / kLanes;
  const float* q = state.q + vec * kLanes;
  for (int lane = 0; lane < kLanes; ++lane, q += per_lane * kTileRows)
    multiply_tile<V, false>(k + lane, state.stride, kLanes, per_lane, q, parts + lane * size);
#pragma GCC unroll 4
  for (int i = 0; i < kFactorsAtOnce; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      int64_t at = i * kTileRows + v * kLanes;
      store(scores + at + vec * kLanes, join_lanes(parts + at, size));
    }
}

// One Shared at work; its rows lie as a TileState's do.
template <class T>
class SharedTile {
 public:
  SharedTile(const Attention<T>& call, const Shared& shared)
      : call_(call), shared_(shared), dim_(call.head_dim), state_(dim_, kSplit) {}

  // Calls sums_of(i) for where the sums of sharer i go, num_rows of each.
  template <int R, class F>
  void attend(const F& sums_of, Ahead& next) {
    begin();
    int64_t vecs = shared_.num_vecs();
    Ahead values(call_, call_.v, shared_.split());
    for (int64_t from = 0; from < kSplit; from += kTile) {
      read(call_.k, from, state_.k);
      score(state_.scores + from * kTileRows, values);
    }
    if (call_.softcap > 0) cap_tile(state_, vecs, kSplit, call_.softcap);
    for (int64_t vec = 0; vec < vecs; ++vec) weigh<R>(vec);
    for (int64_t from = 0; from < kSplit; from += kTile) {
      read(call_.v, from, state_.v);
      for (int64_t d = 0; d < dim_; d += kFactorsAtOnce) {
        next.ask(kTile * kFactorsAtOnce * sizeof(T));
        multiply<true>(state_.v + d, 1, state_.stride, kFactorsAtOnce, kTile, vecs,
                       state_.scores + from * kTileRows, state_.acc + d * kTileRows);
      }
    }
    end(sums_of);
  }

 private:
  // Transposes and scales the queries; the elements that one lane sums become neighbours.
  void begin() {
    std::fill_n(state_.q, dim_ * kTileRows, 0.0f);
    std::fill_n(state_.acc, dim_ * kTileRows, 0.0f);
    float* row = state_.k;
    for (int64_t i = 0; i < shared_.total_rows(); ++i) {
      int64_t seq = shared_.seq(i / shared_.num_rows);
      int64_t head = shared_.head * call_.group() + shared_.first_row + i % shared_.num_rows;
      const float* q = call_.q + call_.at(call_.starts[seq], head);
      for (int64_t d = 0; d < dim_; ++d) row[d] = q[d] * call_.scale;
      for (int64_t d = 0; d < dim_; d += kChunk) split_halves<T>(row + d, row + d);
      float* to = state_.q + i;
      for (int lane = 0; lane < kLanes; ++lane)
        for (int64_t d = lane; d < dim_; d += kLanes, to += kTileRows) *to = row[d];
    }
  }

  // Reads kTile keys or values from position start + from on, each in halves.
  void read(const T* pool, int64_t from, float* to) const {
    int64_t rows[kTile], start = shared_.start + from;
    find_rows(call_, shared_.seq(0), shared_.head, start, start + kTile, rows);
    for (int64_t i = 0; i < kTile; ++i, to += state_.stride)
      for (int64_t d = 0; d < dim_; d += kChunk)
        for (int half = 0; half < 2; ++half)
          store(to + d + half * kLanes, load_half(pool + rows[i] + d, half));
  }

  void score(float* scores, Ahead& values) const {
    for (int64_t i = 0; i < kTile; i += kFactorsAtOnce, scores += kFactorsAtOnce * kTileRows) {
      values.ask(kFactorsAtOnce * dim_ * sizeof(T));
      const float* k = state_.k + i * state_.stride;
      for_parts(shared_.num_vecs(), [&](auto size, int64_t first) {
        score_tile<size>(k, state_, first, scores);
      });
    }
  }

  // Turns scores into weights; totals over every kTotals'th token first, as those of R rows are.
  template <int R>
  void weigh(int64_t vec) const {
    constexpr int kTotals = kLanes / Layout<R>::kPerToken;
    float* scores = state_.scores + vec * kLanes;
    Vec top = splat(kLowest), totals[kTotals] = {};
    for (int64_t i = 0; i < kSplit; ++i) top = largest(top, load(scores + i * kTileRows));
    for (int64_t i = 0; i < kSplit; i += kTotals)
#pragma GCC unroll 16
      for (int total = 0; total < kTotals; ++total) {
        float* score = scores + (i + total) * kTileRows;
        Vec weights = weight(load(score) - top);
        totals[total] += weights;
        store(score, weights);
      }
    for (int total = 1; total < kTotals; ++total) totals[0] += totals[total];
    store(state_.top + vec * kLanes, top);
    store(state_.total + vec * kLanes, totals[0]);
  }

  template <class F>
  void end(const F& sums_of) const {
    float* row = state_.k;
    for (int64_t i = 0; i < shared_.total_rows(); ++i) {
      Sums sums = sums_of(i / shared_.num_rows);
      int64_t r = i % shared_.num_rows;
      for (int64_t d = 0; d < dim_; ++d) row[d] = state_.acc[d * kTileRows + i];
      for (int64_t d = 0; d < dim_; d += kChunk)
        join_halves<T>(load(row + d), load(row + d + kLanes), sums.acc + r * dim_ + d);
      sums.top[r] = state_.top[i], sums.total[r] = state_.total[i];
    }
  }

  const Attention<T>& call_;
  const Shared& shared_;
  int64_t dim_;  // a multiple of kChunk
  TileState state_;
};

template <class T, class F>
void attend_shared(const Attention<T>& call, const Shared& shared, Ahead& next, const F& sums_of) {
  SharedTile<T> tile(call, shared);
  with_rows(shared.num_rows, [&](auto rows) { tile.template attend<rows>(sums_of, next); });
}

}  // namespace paged_jax

// One call of paged attention: its work cut into units, which the threads take one after another.
#pragma once

#include <atomic>
#include <memory>

#include "attention_decode.h"
#include "attention_prefill.h"
#include "parallel.h"

namespace paged_jax {

// Below this many products a call runs on the calling thread: waking another costs more.
constexpr int64_t kProductsWorthAThread = 500'000;
constexpr int64_t kFewSplits = 4;

// A sequence with one query: its splits, and where their Sums lie.
struct Decode {
  int64_t seq, start, stop, first_split;
  int64_t num_splits() const { return (stop + kSplit - 1) / kSplit - start / kSplit; }
};

// A tile of rows, or of decode `decode` one split and the KV heads [first_head, last_head).
struct Unit {
  RowTile tile;
  int64_t decode, split, first_head, last_head;
};

template <class T>
class Step {
 public:
  explicit Step(const Attention<T>& call)
      : call_(call), dim_(round_up(call.head_dim, kChunk)), size_(call.group() * (dim_ + 2)) {
    for (int64_t seq = 0; seq < call.seqs; ++seq)
      if (call.num_queries(seq) > 1) add_tiles(seq);
    for (int64_t seq = 0; seq < call.seqs; ++seq)
      if (call.num_queries(seq) == 1) add_decode(seq);
    add_splits();
  }

  template <class Pool>
  void run(Pool& pool) {
    int64_t padding = call_.at(call_.starts[call_.seqs], 0);
    std::fill(call_.out + padding, call_.out + call_.at(call_.tokens, 0), 0.0f);
    sums_ = workspace<Memory::kSums>(num_splits_ * call_.kv_heads * size_);
    unfinished_ = std::make_unique<std::atomic<int64_t>[]>(decodes_.size());
    for (size_t i = 0; i < decodes_.size(); ++i)
      unfinished_[i] = decodes_[i].num_splits() * call_.kv_heads;
    int64_t threads = products_ < kProductsWorthAThread ? 1 : pool.num_threads();
    parallel_for(pool, std::min<int64_t>(threads, units_.size()), [this](int64_t) { work(); });
  }

 private:
  // Tiles of equal size, the last first: they see the longest context.
  void add_tiles(int64_t seq) {
    int64_t rows = call_.num_queries(seq) * call_.group();
    int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    int64_t size = round_up((rows + tiles - 1) / tiles, kLanes);
    for (int64_t first = (tiles - 1) * size; first >= 0; first -= size)
      for (int64_t head = 0; head < call_.kv_heads && first < rows; ++head)
        units_.push_back({{seq, head, first, std::min(size, rows - first)}, -1, 0, 0, 0});
    products_ += 2 * rows * call_.kv_heads * call_.kv_lens[seq] * call_.head_dim;
  }

  void add_decode(int64_t seq) {
    int64_t stop = call_.kv_lens[seq], start = call_.first_seen(stop - 1);
    decodes_.push_back({seq, start, stop, num_splits_});
    num_splits_ += decodes_.back().num_splits();
    products_ += 2 * call_.q_heads * (stop - start) * call_.head_dim;
  }

  // All heads of a split together read the pool in order; where splits are few, each on its own.
  void add_splits() {
    int64_t heads = num_splits_ >= kFewSplits ? call_.kv_heads : 1;
    for (size_t decode = 0; decode < decodes_.size(); ++decode)
      for (int64_t split = 0; split < decodes_[decode].num_splits(); ++split)
        for (int64_t head = 0; head < call_.kv_heads; head += heads)
          units_.push_back({{}, int64_t(decode), split, head, head + heads});
  }

  // One thread's work: whoever is free takes the next unit, one early, so as to know whose memory
  // to ask for.
  void work() {
    int64_t num_units = units_.size();
    for (int64_t unit = taken_++, next; unit < num_units; unit = next) {
      next = taken_++;
      Ahead keys = next < num_units ? keys_of(units_[next]) : Ahead();
      work_on(units_[unit], keys);
    }
  }

  Ahead keys_of(const Unit& unit) const {
    return unit.decode < 0 ? Ahead() : Ahead(call_, call_.k, split_of(unit));
  }

  Split split_of(const Unit& unit) const {
    const Decode& decode = decodes_[unit.decode];
    int64_t start = (decode.start / kSplit + unit.split) * kSplit;
    return {decode.seq, std::max(start, decode.start), std::min(start + kSplit, decode.stop),
            unit.first_head, unit.last_head};
  }

  void work_on(const Unit& unit, Ahead& next) {
    if (unit.decode < 0) return attend_rows(call_, unit.tile);
    const Decode& decode = decodes_[unit.decode];
    attend_split(call_, split_of(unit), next,
                 [&](int64_t head) { return sums(decode, unit.split, head); });
    int64_t heads = unit.last_head - unit.first_head;
    if (unfinished_[unit.decode].fetch_sub(heads, std::memory_order_acq_rel) == heads)
      join(decode);
  }

  Sums sums(const Decode& decode, int64_t split, int64_t head) const {
    float* acc = sums_ + ((decode.first_split + split) * call_.kv_heads + head) * size_;
    float* top = acc + call_.group() * dim_;
    return {acc, top, top + call_.group()};
  }

  // Joins the splits of a decode, in order, and writes its rows of the result.
  void join(const Decode& decode) const {
    for (int64_t head = 0; head < call_.q_heads; ++head)
      join_row(decode, head, call_.out + call_.at(call_.starts[decode.seq], head));
  }

  void join_row(const Decode& decode, int64_t q_head, float* out) const {
    int64_t head = q_head / call_.group(), row = q_head % call_.group();
    float top = kLowest, total = 0;
    for (int64_t i = 0; i < decode.num_splits(); ++i)
      top = std::max(top, sums(decode, i, head).top[row]);
    std::fill_n(out, call_.head_dim, 0.0f);
    for (int64_t i = 0; i < decode.num_splits(); ++i) {
      Sums part = sums(decode, i, head);
      float factor = part.top[row] == top ? 1.0f : std::exp(part.top[row] - top);
      total += part.total[row] * factor;
      const float* acc = part.acc + row * dim_;
      for (int64_t d = 0; d < call_.head_dim; ++d) out[d] += acc[d] * factor;
    }
    float factor = normaliser(top, total, call_.sinks, q_head);
    for (int64_t d = 0; d < call_.head_dim; ++d) out[d] *= factor;
  }

  const Attention<T>& call_;
  int64_t dim_, size_;  // floats of a row's acc, and of the Sums of a split and KV head
  int64_t num_splits_ = 0, products_ = 0;
  std::vector<Unit> units_;
  std::vector<Decode> decodes_;
  float* sums_ = nullptr;
  std::atomic<int64_t> taken_{0};
  std::unique_ptr<std::atomic<int64_t>[]> unfinished_;
};

}  // namespace paged_jax

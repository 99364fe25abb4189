// One call of paged attention: its work cut into units, which the threads take one after another.
#pragma once

#include <atomic>
#include <memory>

#include "attention_shared.h"
#include "parallel.h"

namespace paged_jax {

// Below this many products a call runs on the calling thread: waking another costs more.
constexpr int64_t kProductsWorthAThread = 500'000;
constexpr int64_t kFewSplits = 4;

// A tile of rows; or of decode `decode` one split and the KV heads [first_head, last_head); or of
// num_sharers decodes a split that they share, one head, and the query rows
// [first_row, first_row + num_rows) of it.
struct Unit {
  RowTile tile;
  int64_t decode, split, first_head, last_head;
  int64_t first_sharer, num_sharers, first_row, num_rows;
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
    is_shared_.resize(num_splits_);
    if (dim_ == call.head_dim)
      find_shared(call, decodes_, [this](int64_t split, const std::vector<int64_t>& sharers) {
        add_shared(split, sharers);
      });
    add_splits();
  }

  template <class Pool>
  void run(Pool& pool) {
    int64_t padding = call_.at(call_.starts[call_.seqs], 0);
    std::fill(call_.out + padding, call_.out + call_.at(call_.tokens, 0), 0.0f);
    sums_ = workspace<Memory::kSums>(num_splits_ * call_.kv_heads * size_);
    unfinished_ = std::make_unique<std::atomic<int64_t>[]>(decodes_.size());
    for (size_t i = 0; i < decodes_.size(); ++i)
      unfinished_[i] = decodes_[i].num_splits() * call_.q_heads;
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
        units_.push_back({{seq, head, first, std::min(size, rows - first)}, -1});
    products_ += 2 * rows * call_.kv_heads * call_.kv_lens[seq] * call_.head_dim;
  }

  void add_decode(int64_t seq) {
    int64_t stop = call_.kv_lens[seq], start = call_.first_seen(stop - 1);
    decodes_.push_back({seq, start, stop, num_splits_});
    num_splits_ += decodes_.back().num_splits();
    products_ += 2 * call_.q_heads * (stop - start) * call_.head_dim;
  }

  // Units of a split that some decodes share.
  void add_shared(int64_t split, const std::vector<int64_t>& sharers) {
    int64_t first = sharers_.size(), count = sharers.size();
    for (int64_t decode : sharers) {
      const Decode& sharer = decodes_[decode];
      sharers_.push_back(decode);
      is_shared_[sharer.first_split + split - sharer.start / kSplit] = true;
    }
    for (int64_t row = 0; row < call_.group(); row += kRowsAtOnce) {
      int64_t rows = std::min<int64_t>(kRowsAtOnce, call_.group() - row);
      int64_t most = kTileRows / rows, tiles = (count + most - 1) / most;
      for (int64_t head = 0; head < call_.kv_heads; ++head)
        for (int64_t tile = 0; tile < tiles; ++tile) {
          int64_t from = count * tile / tiles, to = count * (tile + 1) / tiles;
          units_.push_back({{}, -1, split, head, head + 1, first + from, to - from, row, rows});
        }
    }
  }

  // All heads of a split together read the pool in order; where splits are few, each on its own.
  void add_splits() {
    int64_t heads = num_splits_ >= kFewSplits ? call_.kv_heads : 1;
    for (size_t decode = 0; decode < decodes_.size(); ++decode)
      for (int64_t split = 0; split < decodes_[decode].num_splits(); ++split) {
        if (is_shared_[decodes_[decode].first_split + split]) continue;
        for (int64_t head = 0; head < call_.kv_heads; head += heads)
          units_.push_back({{}, int64_t(decode), split, head, head + heads});
      }
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
    if (unit.num_sharers) return Ahead(call_, call_.k, shared_of(unit).split());
    return unit.decode < 0 ? Ahead() : Ahead(call_, call_.k, split_of(unit));
  }

  Shared shared_of(const Unit& unit) const {
    return {decodes_.data(), sharers_.data() + unit.first_sharer, unit.num_sharers,
            unit.split * kSplit, unit.first_head, unit.first_row, unit.num_rows};
  }

  Split split_of(const Unit& unit) const {
    const Decode& decode = decodes_[unit.decode];
    int64_t start = (decode.start / kSplit + unit.split) * kSplit;
    return {decode.seq, std::max(start, decode.start), std::min(start + kSplit, decode.stop),
            unit.first_head, unit.last_head};
  }

  void work_on(const Unit& unit, Ahead& next) {
    if (unit.num_sharers) return work_on_shared(unit, next);
    if (unit.decode < 0) return attend_rows(call_, unit.tile);
    const Decode& decode = decodes_[unit.decode];
    attend_split(call_, split_of(unit), next,
                 [&](int64_t head) { return sums(decode, unit.split, head); });
    finish(unit.decode, (unit.last_head - unit.first_head) * call_.group());
  }

  void work_on_shared(const Unit& unit, Ahead& next) {
    const int64_t* sharers = sharers_.data() + unit.first_sharer;
    attend_shared(call_, shared_of(unit), next, [&](int64_t i) {
      const Decode& decode = decodes_[sharers[i]];
      Sums of = sums(decode, unit.split - decode.start / kSplit, unit.first_head);
      return Sums{of.acc + unit.first_row * dim_, of.top + unit.first_row,
                  of.total + unit.first_row};
    });
    for (int64_t i = 0; i < unit.num_sharers; ++i) finish(sharers[i], unit.num_rows);
  }

  // Whoever has done the last of a decode's splits joins them; `rows` query rows of one are done.
  void finish(int64_t decode, int64_t rows) {
    if (unfinished_[decode].fetch_sub(rows, std::memory_order_acq_rel) == rows)
      join(decodes_[decode]);
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
  std::vector<bool> is_shared_;   // [num_splits_]
  std::vector<int64_t> sharers_;  // decodes, one Shared's after another's
  float* sums_ = nullptr;
  std::atomic<int64_t> taken_{0};
  std::unique_ptr<std::atomic<int64_t>[]> unfinished_;
};

}  // namespace paged_jax

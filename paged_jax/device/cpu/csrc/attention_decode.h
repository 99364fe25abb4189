// Attention of sequences with one query: every key and value is read once for all query heads
// that share it, and used as it lies in the pool.
//
// A context is cut into splits of kSplit tokens at fixed positions; each gives Sums of its own,
// joined in order. So a result depends neither on the number of threads nor on other sequences.
//
// Memory never waits for arithmetic: a split's values are asked for while its keys are worked on,
// and the keys of the thread's next split meanwhile with the values.
#pragma once

#include "attention.h"
#include "shuffles.h"

namespace paged_jax {

constexpr int64_t kSplit = 256;
constexpr int kRowsAtOnce = 4;
constexpr int kMostTokensAtOnce = std::max(kLanes, 8);
constexpr int64_t kScores = (kSplit + kMostTokensAtOnce) * kRowsAtOnce;
constexpr int64_t kTokensAtATime = 16;  // of every head in turn
constexpr int64_t kChunk = 2 * kLanes;  // elements of a key taken at once

// How R query rows are laid out: the scores of a token in kPerToken neighbouring floats.
template <int R>
struct Layout {
  static constexpr int kPerToken = R == 3 ? 4 : R;
  static constexpr int kTokensAtOnce = R == 3 ? 4 : kMostTokensAtOnce / kPerToken;
  static constexpr int kChunksAtOnce = R == 1 ? 4 : R == 4 ? 1 : 2;  // of values
};

// A sequence with one query: its splits, and where their Sums lie.
struct Decode {
  int64_t seq, start, stop, first_split;
  int64_t num_splits() const { return (stop + kSplit - 1) / kSplit - start / kSplit; }
};

// Positions [start, stop) of a sequence, at most kSplit, and KV heads [first, last).
struct Split {
  int64_t seq, start, stop, first, last;
};

// The keys or values of a split as memory to be asked for, a few cache lines at a time.
class Ahead {
 public:
  Ahead() {}  // leaves rows_ as they are, where `= default` would have them cleared
  template <class T>
  Ahead(const Attention<T>& call, const T* pool, const Split& split)
      : pool_(reinterpret_cast<const char*>(pool + split.first * call.head_dim)),
        item_bytes_(sizeof(T)), row_bytes_((split.last - split.first) * call.head_dim * sizeof(T)),
        count_(split.stop - split.start) {
    find_rows(call, split.seq, 0, split.start, split.stop, rows_);
  }

  void ask(int64_t bytes) {
    for (; bytes > 0 && row_ < count_; bytes -= 64) {
      __builtin_prefetch(pool_ + rows_[row_] * item_bytes_ + offset_);
      offset_ += 64;
      if (offset_ >= row_bytes_) offset_ = 0, ++row_;
    }
  }

 private:
  const char* pool_ = nullptr;
  int64_t item_bytes_ = 0, row_bytes_ = 0, count_ = 0, row_ = 0, offset_ = 0;
  int64_t rows_[kSplit];
};

// Keys and values of one head, of the tokens of a split.
template <class T>
struct Tokens {
  const T* k;
  const T* v;
  const int64_t* rows;  // where each token's lie, then the last again, kMostTokensAtOnce times
  int64_t count;
  int64_t dim;  // a multiple of kChunk
};

// Up to kRowsAtOnce query heads that share them.
template <class T>
struct Block {
  Tokens<T> tokens;
  int64_t num_rows;
  float* q;       // [num_rows, dim], as split_halves leaves it
  float* scores;  // [kScores], later weights
  Sums sums;
};

// The scores of tokens [first, last), kTokensAtOnce at a time; those past the last are of no use.
template <class T, int R>
void score(const Block<T>& block, int64_t first, int64_t last, Ahead& ahead) {
  using L = Layout<R>;
  constexpr int N = L::kTokensAtOnce, P = L::kPerToken;
  const Tokens<T>& tokens = block.tokens;
  for (int64_t token = first; token < last; token += N) {
    ahead.ask(N * tokens.dim * sizeof(T));
    Vec sums[N * P] = {};
    const int64_t* rows = tokens.rows + token;
    for (int64_t d = 0; d < tokens.dim; d += kChunk)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        Vec q[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          q[r] = load(block.q + r * tokens.dim + d + half * kLanes);
          if (r < 2) q[r] = in_register(q[r]);  // there is room for two
        }
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) {
          Vec key = load_half(tokens.k + rows[i] + d, half);
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) sums[i * P + r] += q[r] * key;
        }
      }
#pragma GCC unroll 4
    for (int i = 0; i < N * P; i += kLanes)
      store(block.scores + token * P + i, sum_each(reinterpret_cast<Vec(&)[kLanes]>(sums[i])));
  }
}

// Turns scores into weights; returns each row's largest score and sum of weights.
template <int R>
void weigh(float* scores, int64_t count, float softcap, Sums sums) {
  constexpr int P = Layout<R>::kPerToken;
  int64_t size = round_up(count * P, kLanes);
  if (softcap > 0)
    for (int64_t i = 0; i < size; i += kLanes) store(scores + i, cap(load(scores + i), softcap));
  std::fill(scores + count * P, scores + size, kMinusInfinity);
  Vec tops = splat(kLowest), totals = {};
  for (int64_t i = 0; i < size; i += kLanes) tops = largest(tops, load(scores + i));
  for (int lane = 0; lane < kLanes; ++lane)
    if (lane >= P) tops[lane % P] = std::max(tops[lane % P], tops[lane]);
  for (int lane = P; lane < kLanes; ++lane) tops[lane] = tops[lane % P];
  for (int64_t i = 0; i < size; i += kLanes) {
    Vec weights = weight(load(scores + i) - tops);
    totals += weights;
    store(scores + i, weights);
  }
  for (int lane = P; lane < kLanes; ++lane) totals[lane % P] += totals[lane];
  for (int r = 0; r < R; ++r) sums.top[r] = tops[r], sums.total[r] = totals[r];
}

// The weighted sum of C chunks of the values, from element d on.
template <class T, int R, int C>
void gather(const Block<T>& block, int64_t d, Ahead& ahead) {
  const Tokens<T>& tokens = block.tokens;
  Vec sums[R][C][2] = {};
  const float* weights = block.scores;
  for (int64_t token = 0; token < tokens.count; ++token, weights += Layout<R>::kPerToken) {
    ahead.ask(C * kChunk * sizeof(T));
    const T* value = tokens.v + tokens.rows[token] + d;
    Vec factors[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) factors[r] = in_register(splat(weights[r]));
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        Vec part = load_half(value + c * kChunk, half);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sums[r][c][half] += factors[r] * part;
      }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c)
      join_halves<T>(sums[r][c][0], sums[r][c][1],
                     block.sums.acc + r * tokens.dim + d + c * kChunk);
}

template <class T, int R>
void finish(const Block<T>& block, float softcap, Ahead& ahead) {
  constexpr int64_t C = Layout<R>::kChunksAtOnce;
  const Tokens<T>& tokens = block.tokens;
  weigh<R>(block.scores, tokens.count, softcap, block.sums);
  int64_t d = 0;
  for (; d + C * kChunk <= tokens.dim; d += C * kChunk) gather<T, R, C>(block, d, ahead);
  for (; d < tokens.dim; d += kChunk) gather<T, R, 1>(block, d, ahead);
}

// Calls f with the number of rows as a constant.
template <class F>
void with_rows(int64_t num_rows, const F& f) {
  switch (num_rows) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    default: return f(std::integral_constant<int, 4>());
  }
}

// Scores of all heads first, a few tokens at a time: keys are read in the order they lie in.
template <class T>
void attend_blocks(const std::vector<Block<T>>& blocks, float softcap, Ahead& values,
                   Ahead& next) {
  int64_t count = blocks[0].tokens.count;
  for (int64_t token = 0; token < count; token += kTokensAtATime)
    for (const Block<T>& block : blocks)
      with_rows(block.num_rows, [&](auto rows) {
        score<T, rows>(block, token, std::min(token + kTokensAtATime, count), values);
      });
  for (const Block<T>& block : blocks)
    with_rows(block.num_rows, [&](auto rows) { finish<T, rows>(block, softcap, next); });
}

// Copies rows of head_dim elements as floats, each filled up with zeros to `dim`.
template <class T>
void copy_rows(const T* from, const int64_t* rows, int64_t count, int64_t head_dim, int64_t dim,
               float* to) {
  for (int64_t row = 0; row < count; ++row, to += dim) {
    for (int64_t d = 0; d < head_dim; ++d) to[d] = to_float(from[rows[row] + d]);
    std::fill(to + head_dim, to + dim, 0.0f);
  }
}

inline int64_t head_memory(int64_t group, int64_t dim) {
  return (group + kRowsAtOnce - 1) / kRowsAtOnce * (kRowsAtOnce * dim + kScores);
}

// Adds the blocks of a head whose queries are `group` rows of head_dim floats; their memory is
// head_memory(group, dim) floats.
template <class T>
void add_blocks(const float* q, int64_t group, int64_t head_dim, float scale,
                const Tokens<T>& tokens, Sums sums, float* memory,
                std::vector<Block<T>>& blocks) {
  int64_t dim = tokens.dim;
  for (int64_t row = 0; row < group; row += kRowsAtOnce) {
    int64_t count = std::min<int64_t>(kRowsAtOnce, group - row);
    blocks.push_back({tokens, count, memory, memory + kRowsAtOnce * dim,
                      {sums.acc + row * dim, sums.top + row, sums.total + row}});
    for (int64_t r = 0; r < count; ++r, q += head_dim, memory += dim) {
      for (int64_t d = 0; d < dim; ++d) memory[d] = d < head_dim ? q[d] * scale : 0.0f;
      for (int64_t d = 0; d < dim; d += kChunk) split_halves<T>(memory + d, memory + d);
    }
    memory += (kRowsAtOnce - count) * dim + kScores;
  }
}

// Attends from a sequence's one query to a split; sums_of(head) says where a KV head's sums go, and
// `next` is asked for meanwhile.
template <class T, class F>
void attend_split(const Attention<T>& call, const Split& split, Ahead& next, const F& sums_of) {
  int64_t rows[kSplit + kMostTokensAtOnce], count = split.stop - split.start;
  int64_t head_dim = call.head_dim, dim = round_up(head_dim, kChunk), group = call.group();
  int64_t size = head_memory(group, dim);
  find_rows(call, split.seq, 0, split.start, split.stop, rows);
  std::fill_n(rows + count, kMostTokensAtOnce, rows[count - 1]);
  float* memory = workspace<Memory::kBlocks>(size * (split.last - split.first));
  auto q = [&](int64_t head) { return call.q + call.at(call.starts[split.seq], head * group); };
  if (dim == head_dim) {
    std::vector<Block<T>> blocks;
    for (int64_t head = split.first; head < split.last; ++head, memory += size)
      add_blocks(q(head), group, head_dim, call.scale,
                 Tokens<T>{call.k + head * dim, call.v + head * dim, rows, count, dim},
                 sums_of(head), memory, blocks);
    Ahead values(call, call.v, split);
    return attend_blocks(blocks, call.softcap, values, next);
  }
  float* k = workspace<Memory::kCopies>(2 * kSplit * dim);
  float* v = k + kSplit * dim;
  int64_t copied[kSplit + kMostTokensAtOnce];
  for (int64_t i = 0; i < count + kMostTokensAtOnce; ++i) copied[i] = std::min(i, count - 1) * dim;
  for (int64_t head = split.first; head < split.last; ++head) {
    copy_rows(call.k + head * head_dim, rows, count, head_dim, dim, k);
    copy_rows(call.v + head * head_dim, rows, count, head_dim, dim, v);
    std::vector<Block<float>> blocks;
    add_blocks(q(head), group, head_dim, call.scale, Tokens<float>{k, v, copied, count, dim},
               sums_of(head), memory, blocks);
    Ahead nothing;
    attend_blocks(blocks, call.softcap, nothing, next);
  }
}

}  // namespace paged_jax

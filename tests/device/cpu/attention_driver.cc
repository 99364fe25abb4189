// Every path of paged attention against sums in double, by one thread and by three, without XLA, so
// that sanitizers can watch it.
#include <cstdio>
#include <cstdlib>

#include "attention_step.h"
#include "threads.h"

using namespace paged_jax;

void convert(float from, float& to) { to = from; }
void convert(float from, uint16_t& to) { to = to_bfloat16(from); }

struct Shape {
  int64_t group, kv_heads, head_dim, block_size, queries, context, window;
  float softcap;
};

// A step of one sequence, whose first block is the pool's last, and a padding token.
template <class T>
struct Case {
  std::vector<float> q, out;
  std::vector<T> k, v;
  std::vector<int32_t> table, starts, kv_lens;
  Attention<T> call{};

  explicit Case(const Shape& shape) {
    int64_t blocks = (shape.context + shape.block_size - 1) / shape.block_size;
    int64_t heads = shape.group * shape.kv_heads;
    k.resize(blocks * shape.block_size * shape.kv_heads * shape.head_dim);
    v.resize(k.size()), q.resize((shape.queries + 1) * heads * shape.head_dim), out.resize(q.size());
    for (float& value : q) value = 4 * uniform();
    for (T& value : k) convert(uniform(), value);
    for (T& value : v) convert(uniform(), value);
    for (int64_t i = 0; i < blocks; ++i) table.push_back(int32_t(blocks - 1 - i));
    starts = {0, int32_t(shape.queries)}, kv_lens = {int32_t(shape.context)};
    call.q = q.data(), call.k = k.data(), call.v = v.data(), call.out = out.data();
    call.tables = table.data(), call.starts = starts.data(), call.kv_lens = kv_lens.data();
    call.tokens = shape.queries + 1, call.seqs = 1, call.max_blocks = blocks;
    call.block_size = shape.block_size, call.q_heads = heads, call.kv_heads = shape.kv_heads;
    call.head_dim = shape.head_dim, call.scale = 0.3f, call.softcap = shape.softcap;
    call.window = shape.window;
  }

  std::vector<float> run(int threads) {
    Threads pool{threads, {}};
    Step<T>(call).run(pool);
    return out;
  }
};

template <class T>
std::vector<double> expected(const Attention<T>& call, int64_t token, int64_t head) {
  int64_t position = call.position(0, token), dim = call.head_dim;
  std::vector<int64_t> rows(call.kv_lens[0]);
  find_rows(call, 0, head / call.group(), 0, call.kv_lens[0], rows.data());
  std::vector<double> sums(dim + 1);
  for (int64_t at = call.first_seen(position); at <= position; ++at) {
    double score = 0;
    for (int64_t d = 0; d < dim; ++d)
      score += double(call.q[call.at(token, head) + d]) * to_float(call.k[rows[at] + d]);
    score *= call.scale;
    if (call.softcap > 0) score = std::tanh(score / call.softcap) * call.softcap;
    for (int64_t d = 0; d < dim; ++d)
      sums[d] += std::exp(score) * to_float(call.v[rows[at] + d]);
    sums[dim] += std::exp(score);
  }
  for (int64_t d = 0; d < dim; ++d) sums[d] /= sums[dim];
  return sums;
}

void fail(const char* what) {
  std::printf("%s\n", what);
  std::exit(1);
}

template <class T>
void check(const Shape& shape) {
  Case<T> one(shape);
  std::vector<float> out = one.run(1);
  if (one.run(3) != out) fail("three threads give other bits than one");
  const Attention<T>& call = one.call;
  for (int64_t token = 0; token < shape.queries; ++token)
    for (int64_t head = 0; head < call.q_heads; ++head) {
      std::vector<double> want = expected(call, token, head);
      for (int64_t d = 0; d < call.head_dim; ++d)
        if (!(std::fabs(out[call.at(token, head) + d] - want[d]) < 1e-5)) fail("a wrong result");
    }
  for (int64_t i = call.at(shape.queries, 0); i < int64_t(out.size()); ++i)
    if (out[i] != 0) fail("padding is not zero");
}

// As many sequences of one query as the shape has queries, on the same blocks, against each alone.
template <class T>
void check_shared(const Shape& shape) {
  Case<T> all(shape);
  Attention<T>& call = all.call;
  int64_t seqs = shape.queries, blocks = call.max_blocks;
  for (int64_t i = blocks; i < seqs * blocks; ++i) all.table.push_back(all.table[i - blocks]);
  all.kv_lens.assign(seqs, int32_t(shape.context)), all.starts.resize(seqs + 1);
  for (int64_t i = 0; i <= seqs; ++i) all.starts[i] = int32_t(i);
  call.tables = all.table.data(), call.kv_lens = all.kv_lens.data();
  call.starts = all.starts.data(), call.seqs = seqs;
  std::vector<float> out = all.run(1);
  if (all.run(3) != out) fail("three threads give other bits than one");
  call.seqs = 1;
  for (int64_t seq = 0; seq < seqs; ++seq, ++call.starts) {
    std::vector<float> alone = all.run(1);
    for (int64_t i = call.at(seq, 0); i < call.at(seq + 1, 0); ++i)
      if (alone[i] != out[i]) fail("a shared prefix gives other bits");
  }
}

int main() {
  constexpr int64_t whole = int64_t(1) << 40;
  for (auto [group, kv_heads, head_dim] : {std::tuple(3, 3, 64), std::tuple(1, 2, 16),
                                           std::tuple(7, 1, 37), std::tuple(2, 1, 80)})
    for (int64_t queries : {1, 2, 17, 70})
      for (int64_t context : {70, 300, 1100})
        for (auto [window, softcap] : {std::pair(whole, 0.0f), std::pair(int64_t(40), 2.0f)}) {
          check<uint16_t>({group, kv_heads, head_dim, 16, queries, context, window, softcap});
          check<float>({group, kv_heads, head_dim, 5, queries, context, window, softcap});
        }
  for (auto [group, head_dim] : {std::pair(3, 64), std::pair(1, 16), std::pair(7, 80)})
    for (auto [window, softcap] : {std::pair(whole, 0.0f), std::pair(int64_t(400), 2.0f)}) {
      check_shared<uint16_t>({group, 2, head_dim, 16, 50, 600, window, softcap});
      check_shared<float>({group, 2, head_dim, 5, 50, 600, window, softcap});
    }
  std::puts("all results agree");
}

// The output with the largest product for each row of x @ W, of a packed bfloat16 W (panels.h).
//
// Rows and outputs are rounded to 16-bit integers, whose products take half the instructions. By
// Cauchy and Schwarz x w differs from its rounded x' w' by |x - x'| |w| + |x'| |w - w'| at most.
// What may be the largest in spite of that is summed as matmul.h does, so that the answer is that
// of its sums, to the last bit.
#pragma once

#include <atomic>
#include <cmath>
#include <limits>

#include "matmul.h"

namespace paged_jax {

constexpr float kLength = 32700.0f;  // of a rounded vector: items fit 16 bits, products 32
constexpr float kSlack = 1.001f;     // bounds are rounded too
constexpr float kTiny = 1e-30f;      // keeps scales of zeros finite, and is above what underflows
constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr int64_t kPanelsOfTask = 32;

// `size`: what 1 stands for. `length`, `error`: at least the lengths of the rounded vector and of
// what is lost by rounding; a row's also has what the sums in float32 may lose.
struct RoundedRow {
  float size, length, error;
};

struct RoundedPanel {
  std::vector<Bits> weights;  // two registers for each pair of inputs
  Vec size[2], length[2], error[2];
  Vec floor[2];  // -inf where there is no output, else 0
};

// The largest item so far of a row, and its output.
struct Best {
  float value = kLowest;
  int64_t index = 0;

  void update(float other, int64_t at) {
    if (other > value || (other == value && value > kLowest && at < index)) *this = {other, at};
  }
};

// No other threads.
struct Alone {
  int num_threads() const { return 1; }
  template <class F>
  void Schedule(F) {}
};

// A row and a panel whose outputs are `most` at most.
struct Candidate {
  int64_t row, panel;
  float most;
};

inline RoundedRow to_integers(const float* from, int64_t inner, uint32_t* to) {
  double square = kTiny, lost = 0;
  for (int64_t k = 0; k < inner; ++k) square += double(from[k]) * from[k];
  double length = std::sqrt(square);
  std::fill_n(to, (inner + 1) / 2, 0);
  if (!(length < 1e30)) return {0, 0, std::numeric_limits<float>::infinity()};
  double scale = kLength / length;
  for (int64_t k = 0; k < inner; ++k) {
    double whole = std::nearbyint(from[k] * scale), rest = from[k] - whole / scale;
    to[k / 2] |= uint32_t(uint16_t(int16_t(whole))) << (k % 2 * 16);
    lost += rest * rest;
  }
  lost = std::sqrt(lost);
  double summing = (inner + 8) * 0x1p-23 * length;
  return {float(1 / scale), float((length + lost) * kSlack), float((lost + summing) * kSlack)};
}

// The largest absolute weight of each output in one half of a panel; NaN is above everything.
inline Vec largest_weights(const Bfloat16* half, int64_t pairs) {
  Items top{};
  for (int64_t pair = 0; pair < pairs; ++pair, half += 2 * kPanelWidth) {
    __builtin_prefetch(half + kPrefetchBytes / sizeof *half);
    Items sizes = load_as<Items>(half) & uint16_t(0x7fff);
    top = top > sizes ? top : sizes;
  }
  Bits first = (Bits)top << 16, second = (Bits)top & 0xffff0000u;
  return (Vec)(first > second ? first : second);
}

inline void to_integers(const Bfloat16* panel, int64_t pairs, int64_t width, RoundedPanel& to) {
  to.weights.resize(2 * pairs);
  for (int half = 0; half < 2; ++half, panel += kPanelWidth) {
    Vec length = largest_weights(panel, pairs) * std::sqrt(2.0f * pairs) * kSlack + kTiny;
    Vec scale = kLength / length;
    to.length[half] = length;
    to.size[half] = 1.0f / scale;
    to.error[half] = to.size[half] * (0.51f * std::sqrt(2.0f * pairs));
    for (int lane = 0; lane < kLanes; ++lane)
      to.floor[half][lane] = half * kLanes + lane < width ? 0 : kLowest;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      Bits both = load_as<Bits>(panel + 2 * pair * kPanelWidth);
      to.weights[2 * pair + half] =
          round_pair(first_of_pair(both) * scale, second_of_pair(both) * scale);
    }
  }
}

class Search {
 public:
  // Looks among the first `limit` outputs.
  Search(const float* x, int64_t rows, int64_t inner, const Bfloat16* panels, int64_t limit)
      : x_{x, inner}, rows_(rows), inner_(inner), panels_(panels), limit_(limit),
        rounded_(rows * pairs()), about_(rows), sure_(rows) {
    for (int64_t row = 0; row < rows; ++row) {
      about_[row] = to_integers(x_.at(row), inner, rounded_.data() + row * pairs());
      sure_[row].store(kLowest, std::memory_order_relaxed);
    }
  }

  template <class Pool>
  std::vector<Best> run(Pool& pool) {
    int64_t panels = (limit_ + kPanelWidth - 1) / kPanelWidth;
    std::vector<std::vector<Candidate>> found((panels + kPanelsOfTask - 1) / kPanelsOfTask);
    parallel_for(pool, found.size(), [&](int64_t task) {
      RoundedPanel panel;
      int64_t first = task * kPanelsOfTask;
      for (int64_t i = first; i < std::min(first + kPanelsOfTask, panels); ++i)
        look_at(i, panel, found[task]);
    });
    std::vector<Best> bests(rows_);
    for (const auto& candidates : found)
      for (const Candidate& candidate : candidates)
        if (!(candidate.most < sure_[candidate.row])) sum(candidate, bests[candidate.row]);
    return bests;
  }

 private:
  int64_t pairs() const { return (inner_ + 1) / 2; }

  // All rows times one panel.
  void look_at(int64_t index, RoundedPanel& panel, std::vector<Candidate>& found) {
    const int64_t panel_items = panel_size<Bfloat16>(inner_);
    const Bfloat16* weights = panels_ + index * panel_items;
    to_integers(weights, pairs(), limit_ - index * kPanelWidth, panel);
    for_tiles(rows_, [&](auto size, int64_t first) {
      constexpr int R = size.value;
      for (int64_t i = panel_items * first / rows_; i < panel_items * (first + R) / rows_; i += 32)
        __builtin_prefetch(weights + panel_items + i, 0, 2);  // the next panel, from memory
      Ints sums[R][2];
      sum_rounded<R>(first, panel, sums);
      for (int r = 0; r < R; ++r) judge(first + r, sums[r], index, panel, found);
    });
  }

  template <int R>
  void sum_rounded(int64_t first, const RoundedPanel& panel, Ints (&out)[R][2]) const {
    Rows<uint32_t> x{rounded_.data() + first * pairs(), pairs()};
    const Bits* weights = panel.weights.data();
    Ints sums[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = Ints{};
    for (int64_t pair = 0; pair < pairs(); ++pair, weights += 2)
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        Bits input = Bits{} + x.at(r)[pair];
        sums[r][0] = add_pair_products(sums[r][0], input, weights[0]);
        sums[r][1] = add_pair_products(sums[r][1], input, weights[1]);
      }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) out[r][0] = sums[r][0], out[r][1] = sums[r][1];
  }

  // Keeps a panel that may have the row's largest product; a comparison with NaN keeps it.
  void judge(int64_t row, const Ints (&sums)[2], int64_t index, const RoundedPanel& panel,
             std::vector<Candidate>& found) {
    const RoundedRow& about = about_[row];
    Vec most[2], least[2];
    for (int half = 0; half < 2; ++half) {
      Vec value = __builtin_convertvector(sums[half], Vec) * (panel.size[half] * about.size);
      Vec error = panel.length[half] * about.error + panel.error[half] * about.length + kTiny;
      most[half] = value + error + panel.floor[half];
      least[half] = value - error + panel.floor[half];
    }
    Vec sure = splat(sure_[row].load(std::memory_order_relaxed));
    if (are_all((most[0] < sure) & (most[1] < sure))) return;
    found.push_back({row, index, most_of(most)});
    raise(sure_[row], most_of(least));
  }

  static float most_of(const Vec (&values)[2]) {
    float most = kLowest;
    for (int i = 0; i < kPanelWidth; ++i) {
      float value = values[i / kLanes][i % kLanes];
      if (!(value <= most) && most == most) most = value;  // NaN is above everything
    }
    return most;
  }

  static void raise(std::atomic<float>& sure, float value) {
    float old = sure.load(std::memory_order_relaxed);
    while (old < value && !sure.compare_exchange_weak(old, value, std::memory_order_relaxed)) {}
  }

  // The products themselves, by the matmul.
  void sum(const Candidate& candidate, Best& best) const {
    int64_t first = candidate.panel * kPanelWidth;
    int64_t width = std::min<int64_t>(kPanelWidth, limit_ - first);
    float products[kPanelWidth];
    Matrix panel{panels_ + candidate.panel * panel_size<Bfloat16>(inner_), nullptr, width, products};
    Alone pool;
    multiply<Bfloat16>(pool, x_.at(candidate.row), 1, inner_, {panel}, false);
    for (int64_t i = 0; i < width; ++i) best.update(products[i], first + i);
  }

  Rows<float> x_;
  int64_t rows_, inner_;
  const Bfloat16* panels_;
  int64_t limit_;
  std::vector<uint32_t> rounded_;
  std::vector<RoundedRow> about_;
  std::vector<std::atomic<float>> sure_;
};

}  // namespace paged_jax

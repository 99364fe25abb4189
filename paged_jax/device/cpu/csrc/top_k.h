// The k largest values of a row, in falling order; of equal ones the first come first.
//
// One pass keeps candidates: values above the k-th largest seen so far. Of n values in random order
// only about k ln(n / k) are ever kept, so a row costs little more than being read.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "simd.h"

namespace paged_jax {

struct Ranked {
  float value;
  int32_t index;

  bool operator<(const Ranked& other) const {
    return value > other.value || (value == other.value && index < other.index);
  }
};

inline bool any_above(const float* values, float border) {
  constexpr int kVectors = 4;
  Ints found = {};
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) found |= load(values + i * kLanes) > splat(border);
  int32_t any = 0;
  for (int lane = 0; lane < kLanes; ++lane) any |= found[lane];
  return any;
}

class Candidates {
 public:
  explicit Candidates(int64_t k) : k_(k) { kept_.reserve(2 * k); }

  // NaN is never a candidate; -inf is.
  void offer(const float* values, int64_t count) {
    constexpr int64_t kRun = 4 * kLanes;
    int64_t i = 0;
    for (; i + kRun <= count; i += kRun)
      if (!is_full_ || any_above(values + i, border_)) add(values, i, i + kRun);
    add(values, i, count);
  }

  // Writes the k largest; where there are fewer, -inf and index 0.
  void write(float* values, int32_t* indices) {
    std::sort(kept_.begin(), kept_.end());
    kept_.resize(k_, {-std::numeric_limits<float>::infinity(), 0});
    for (const Ranked& each : kept_) *values++ = each.value, *indices++ = each.index;
  }

 private:
  void add(const float* values, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      if (is_full_ ? !(values[i] > border_) : values[i] != values[i]) continue;
      kept_.push_back({values[i], int32_t(i)});
      if (int64_t(kept_.size()) == 2 * k_) shrink();
    }
  }

  // Later values equal to the border are no candidates: those before them come first.
  void shrink() {
    std::nth_element(kept_.begin(), kept_.begin() + (k_ - 1), kept_.end());
    kept_.resize(k_);
    border_ = kept_.back().value;
    is_full_ = true;
  }

  int64_t k_;
  std::vector<Ranked> kept_;
  bool is_full_ = false;  // border_ is the least of k values
  float border_ = 0;
};

}  // namespace paged_jax

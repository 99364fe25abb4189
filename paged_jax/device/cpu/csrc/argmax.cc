// The first index of each row's largest value.
#include <algorithm>
#include <limits>
#include <vector>

#include "parallel.h"
#include "simd.h"
#include "xla/ffi/api/ffi.h"

namespace paged_jax {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kPart = 16384;       // values a task looks at
constexpr int64_t kRun = 32 * kLanes;  // values between two looks at the largest so far

struct Best {
  float value;
  int64_t index;
};

float largest_of(const float* values, int64_t count) {
  Vec top[4];
  std::fill_n(top, 4, splat(-std::numeric_limits<float>::infinity()));
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) top[j] = largest(top[j], load(values + i + j * kLanes));
  Vec best = largest(largest(top[0], top[1]), largest(top[2], top[3]));
  float most = best[0];
  for (int lane = 1; lane < kLanes; ++lane) most = std::max(most, float(best[lane]));
  for (; i < count; ++i) most = std::max(most, values[i]);
  return most;
}

// Finds the run of the largest value first, then the value in it; NaN is never the largest.
Best find_best(const float* values, int64_t count) {
  float best = -std::numeric_limits<float>::infinity();
  int64_t at = 0;
  for (int64_t i = 0; i < count; i += kRun) {
    float most = largest_of(values + i, std::min(kRun, count - i));
    if (most > best) best = most, at = i;
  }
  const float* end = values + std::min(at + kRun, count);
  const float* found = std::find(values + at, end, best);
  return {best, found == end ? 0 : found - values};
}

ffi::Error run_argmax(ffi::ThreadPool threads, ffi::Buffer<ffi::F32> values,
                      ffi::ResultBuffer<ffi::S32> out, int64_t limit) {
  int64_t rows = values.dimensions()[0], width = values.dimensions()[1];
  int64_t parts = (limit + kPart - 1) / kPart;
  std::vector<Best> bests(rows * parts);
  parallel_for(threads, rows * parts, [&](int64_t task) {
    int64_t row = task / parts, start = task % parts * kPart;
    bests[task] = find_best(values.typed_data() + row * width + start,
                            std::min(kPart, limit - start));
    bests[task].index += start;
  });
  for (int64_t row = 0; row < rows; ++row) {
    const Best* best = &bests[row * parts];
    for (int64_t part = 1; part < parts; ++part)
      if (bests[row * parts + part].value > best->value) best = &bests[row * parts + part];
    out->typed_data()[row] = int32_t(best->index);
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace paged_jax

XLA_FFI_DEFINE_HANDLER_SYMBOL(Argmax, paged_jax::run_argmax,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Attr<int64_t>("limit"));

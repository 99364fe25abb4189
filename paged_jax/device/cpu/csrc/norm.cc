// Root-mean-square norm of rows, alone or of the sum of two arrays.
#include <algorithm>
#include <cmath>

#include "parallel.h"
#include "simd.h"
#include "xla/ffi/api/ffi.h"

namespace paged_jax {
namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Result = ffi::Result<Floats>;

constexpr int64_t kFloatsPerTask = 8192;

float sum_of_squares(const float* x, int64_t dim) {
  Vec sums[4] = {};
  int64_t d = 0;
  for (; d + 4 * kLanes <= dim; d += 4 * kLanes)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      Vec part = load(x + d + i * kLanes);
      sums[i] += part * part;
    }
  float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; d < dim; ++d) total += x[d] * x[d];
  return total;
}

void norm_row(const float* x, const float* weight, int64_t dim, float eps, float* __restrict out) {
  float factor = 1 / std::sqrt(sum_of_squares(x, dim) / dim + eps);
  for (int64_t d = 0; d < dim; ++d) out[d] = x[d] * factor * weight[d];
}

void add_row(const float* x, const float* added, int64_t dim, float* __restrict sum) {
  for (int64_t d = 0; d < dim; ++d) sum[d] = x[d] + added[d];
}

// Calls body(offset) for each row of `x`, whose last axis is `dim` long.
template <class Body>
void for_rows(ffi::ThreadPool& threads, const Floats& x, int64_t dim, const Body& body) {
  int64_t rows = x.element_count() / dim, group = std::max<int64_t>(1, kFloatsPerTask / dim);
  parallel_for(threads, (rows + group - 1) / group, [&](int64_t task) {
    int64_t stop = std::min(rows, (task + 1) * group);
    for (int64_t row = task * group; row < stop; ++row) body(row * dim);
  });
}

ffi::Error run_norm(ffi::ThreadPool threads, Floats x, Floats weight, Result out, float eps) {
  int64_t dim = weight.element_count();
  for_rows(threads, x, dim, [&](int64_t at) {
    norm_row(x.typed_data() + at, weight.typed_data(), dim, eps, out->typed_data() + at);
  });
  return ffi::Error::Success();
}

ffi::Error run_add_norm(ffi::ThreadPool threads, Floats x, Floats added, Floats weight,
                        Result sum, Result out, float eps) {
  int64_t dim = weight.element_count();
  for_rows(threads, x, dim, [&](int64_t at) {
    float* row = sum->typed_data() + at;
    add_row(x.typed_data() + at, added.typed_data() + at, dim, row);
    norm_row(row, weight.typed_data(), dim, eps, out->typed_data() + at);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace paged_jax

XLA_FFI_DEFINE_HANDLER_SYMBOL(Norm, paged_jax::run_norm,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<paged_jax::Floats>()
                                  .Arg<paged_jax::Floats>()
                                  .Ret<paged_jax::Floats>()
                                  .Attr<float>("eps"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(AddNorm, paged_jax::run_add_norm,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<paged_jax::Floats>()
                                  .Arg<paged_jax::Floats>()
                                  .Arg<paged_jax::Floats>()
                                  .Ret<paged_jax::Floats>()
                                  .Ret<paged_jax::Floats>()
                                  .Attr<float>("eps"));

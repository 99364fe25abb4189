// The matmul's entry points for XLA.
#include "matmul.h"

#include "xla/ffi/api/ffi.h"

namespace paged_jax {
namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;

template <class W>
ffi::Error multiply_all(ffi::ThreadPool& pool, Floats x, ffi::RemainingArgs weights,
                        ffi::RemainingRets outs, bool is_gated) {
  auto shape = x.dimensions();
  size_t per_matrix = std::is_same_v<W, int8_t> ? 2 : 1;  // panels, and scales of integers
  std::vector<Matrix> matrices;
  for (size_t i = 0; i < weights.size(); i += per_matrix) {
    auto panels = weights.get<ffi::AnyBuffer>(i);
    auto out = outs.get<Floats>(is_gated ? 0 : i / per_matrix);
    if (panels->dimensions()[2] != kPanelWidth)
      return ffi::Error::InvalidArgument("a matrix was packed for another machine");
    const float* scales = per_matrix == 2 ? weights.get<Floats>(i + 1)->typed_data() : nullptr;
    matrices.push_back({panels->untyped_data(), scales, (*out)->dimensions()[1],
                        (*out)->typed_data()});
  }
  multiply<W>(pool, x.typed_data(), shape[0], shape[1], std::move(matrices), is_gated);
  return ffi::Error::Success();
}

ffi::Error run_matmul(ffi::ThreadPool pool, Floats x, ffi::RemainingArgs weights,
                      ffi::RemainingRets outs, bool is_gated) {
  switch (weights.get<ffi::AnyBuffer>(0)->element_type()) {
    case ffi::F32: return multiply_all<float>(pool, x, weights, outs, is_gated);
    case ffi::BF16: return multiply_all<Bfloat16>(pool, x, weights, outs, is_gated);
    case ffi::S8: return multiply_all<int8_t>(pool, x, weights, outs, is_gated);
    default: return ffi::Error::InvalidArgument("weights must be float32, bfloat16 or int8");
  }
}

}  // namespace
}  // namespace paged_jax

XLA_FFI_DEFINE_HANDLER_SYMBOL(Matmul, paged_jax::run_matmul,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<paged_jax::Floats>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<bool>("is_gated"));

extern "C" int64_t panel_width() { return paged_jax::kPanelWidth; }

// The matmul's entry points for XLA.
#include "matmul.h"

#include "xla/ffi/api/ffi.h"

namespace paged_jax {
namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;

template <class W>
ffi::Error multiply_all(ffi::ThreadPool& pool, Floats x, int64_t num_rows,
                        ffi::RemainingArgs weights, ffi::RemainingRets outs, bool is_gated) {
  auto shape = x.dimensions();
  size_t per_matrix = std::is_same_v<W, int8_t> ? 2 : 1;  // panels, and scales of integers
  std::vector<Matrix> matrices;
  for (size_t i = 0; i < weights.size(); i += per_matrix) {
    auto panels = weights.get<ffi::AnyBuffer>(i);
    auto out = outs.get<Floats>(is_gated ? 0 : i / per_matrix);
    if (panels->dimensions()[2] != kPanelWidth)
      return ffi::Error::InvalidArgument("a matrix was packed for another machine");
    if (panels->element_type() != weights.get<ffi::AnyBuffer>(0)->element_type())
      return ffi::Error::InvalidArgument("the matrices of a call must have one dtype");
    const float* scales = per_matrix == 2 ? weights.get<Floats>(i + 1)->typed_data() : nullptr;
    int64_t outer = (*out)->dimensions()[1];
    matrices.push_back({panels->untyped_data(), scales, outer, (*out)->typed_data()});
    std::fill_n((*out)->typed_data() + num_rows * outer, (shape[0] - num_rows) * outer, 0.0f);
  }
  multiply<W>(pool, x.typed_data(), num_rows, shape[1], std::move(matrices), is_gated);
  return ffi::Error::Success();
}

ffi::Error run_matmul(ffi::ThreadPool pool, Floats x, ffi::BufferR0<ffi::S32> num_rows,
                      ffi::RemainingArgs weights, ffi::RemainingRets outs, bool is_gated) {
  int64_t rows = *num_rows.typed_data();
  if (rows < 0 || rows > x.dimensions()[0])
    return ffi::Error::InvalidArgument("num_rows must be within the rows there are");
  switch (weights.get<ffi::AnyBuffer>(0)->element_type()) {
    case ffi::F32: return multiply_all<float>(pool, x, rows, weights, outs, is_gated);
    case ffi::BF16: return multiply_all<Bfloat16>(pool, x, rows, weights, outs, is_gated);
    case ffi::S8: return multiply_all<int8_t>(pool, x, rows, weights, outs, is_gated);
    default: return ffi::Error::InvalidArgument("weights must be float32, bfloat16 or int8");
  }
}

template <class W>
ffi::Error read_all(ffi::ThreadPool& pool, ffi::Span<const int32_t> columns, const W* panels,
                    ffi::Result<Floats> out) {
  int64_t inner = out->dimensions()[1];
  parallel_for(pool, (columns.size() + 15) / 16, [&](int64_t task) {
    for (size_t i = task * 16; i < std::min<size_t>(columns.size(), task * 16 + 16); ++i)
      read_column(panels, inner, columns[i], out->typed_data() + i * inner);
  });
  return ffi::Error::Success();
}

ffi::Error run_read_columns(ffi::ThreadPool pool, ffi::Buffer<ffi::S32> columns,
                            ffi::AnyBuffer panels, ffi::Result<Floats> out) {
  ffi::Span<const int32_t> which(columns.typed_data(), columns.element_count());
  if (panels.dimensions()[2] != kPanelWidth)
    return ffi::Error::InvalidArgument("a matrix was packed for another machine");
  if (panels.element_type() == ffi::F32)
    return read_all(pool, which, panels.typed_data<float>(), out);
  return read_all(pool, which, static_cast<const Bfloat16*>(panels.untyped_data()), out);
}

}  // namespace
}  // namespace paged_jax

XLA_FFI_DEFINE_HANDLER_SYMBOL(Matmul, paged_jax::run_matmul,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<paged_jax::Floats>()
                                  .Arg<xla::ffi::BufferR0<xla::ffi::S32>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<bool>("is_gated"));

extern "C" int64_t panel_width() { return paged_jax::kPanelWidth; }

XLA_FFI_DEFINE_HANDLER_SYMBOL(ReadColumns, paged_jax::run_read_columns,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<paged_jax::Floats>());

extern "C" void pack_panels(const void* from, int64_t item_bytes, int64_t inner, int64_t outer,
                            int64_t inner_stride, int64_t outer_stride, void* to) {
  auto run = [&](auto* typed) {
    using W = std::remove_pointer_t<decltype(typed)>;
    paged_jax::pack(static_cast<const W*>(from), inner, outer, inner_stride, outer_stride,
                    static_cast<W*>(to));
  };
  if (item_bytes == 4) return run(static_cast<float*>(nullptr));
  if (item_bytes == 2) return run(static_cast<paged_jax::Bfloat16*>(nullptr));
  return run(static_cast<int8_t*>(nullptr));
}

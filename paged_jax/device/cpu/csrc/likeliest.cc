// The search for the likeliest outputs, for XLA.
#include "likeliest.h"

#include "xla/ffi/api/ffi.h"

namespace paged_jax {
namespace {

namespace ffi = xla::ffi;

ffi::Error run_likeliest(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x,
                         ffi::BufferR0<ffi::S32> num_rows, ffi::Buffer<ffi::BF16> panels,
                         ffi::ResultBuffer<ffi::S32> out, int64_t limit) {
  int64_t rows = *num_rows.typed_data(), all_rows = x.dimensions()[0];
  if (rows < 0 || rows > all_rows)
    return ffi::Error::InvalidArgument("num_rows must be within the rows there are");
  if (panels.dimensions()[2] != kPanelWidth)
    return ffi::Error::InvalidArgument("a matrix was packed for another machine");
  auto weights = static_cast<const Bfloat16*>(panels.untyped_data());
  Search search(x.typed_data(), rows, x.dimensions()[1], weights, limit);
  int32_t* to = out->typed_data();
  for (const Best& best : search.run(pool)) *to++ = int32_t(best.index);
  std::fill_n(to, all_rows - rows, 0);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace paged_jax

extern "C" bool has_pair_products() { return paged_jax::kHasPairProducts; }

XLA_FFI_DEFINE_HANDLER_SYMBOL(Likeliest, paged_jax::run_likeliest,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Arg<xla::ffi::BufferR0<xla::ffi::S32>>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::BF16>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Attr<int64_t>("limit"));

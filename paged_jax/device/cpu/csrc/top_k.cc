// The top-k's entry point for XLA.
#include "top_k.h"

#include "parallel.h"
#include "xla/ffi/api/ffi.h"

namespace paged_jax {
namespace {

namespace ffi = xla::ffi;

ffi::Error run_top_k(ffi::ThreadPool threads, ffi::Buffer<ffi::F32> logits,
                     ffi::ResultBuffer<ffi::F32> values, ffi::ResultBuffer<ffi::S32> indices) {
  int64_t width = logits.dimensions()[1], k = values->dimensions()[1];
  if (k > width) return ffi::Error::InvalidArgument("k must be within the row's length");
  if (k == 0) return ffi::Error::Success();
  parallel_for(threads, logits.dimensions()[0], [&](int64_t row) {
    Candidates candidates(k);
    candidates.offer(logits.typed_data() + row * width, width);
    candidates.write(values->typed_data() + row * k, indices->typed_data() + row * k);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace paged_jax

XLA_FFI_DEFINE_HANDLER_SYMBOL(TopK, paged_jax::run_top_k,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                                  .Ret<xla::ffi::Buffer<xla::ffi::S32>>());

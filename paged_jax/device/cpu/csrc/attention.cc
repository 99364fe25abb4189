// Paged attention's entry point for XLA.
#include "attention_step.h"

#include "xla/ffi/api/ffi.h"

namespace paged_jax {
namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Indices = ffi::Buffer<ffi::S32>;

template <class T>
ffi::Error attend(ffi::ThreadPool& pool, Attention<T> call, ffi::AnyBuffer k, ffi::AnyBuffer v) {
  call.k = static_cast<const T*>(k.untyped_data());
  call.v = static_cast<const T*>(v.untyped_data());
  Step<T>(call).run(pool);
  return ffi::Error::Success();
}

template <class T>
Attention<T> describe(Floats q, ffi::AnyBuffer k, Indices tables, Indices starts, Indices kv_lens,
                      ffi::RemainingArgs sinks, ffi::Result<Floats> out) {
  Attention<T> call{};
  call.q = q.typed_data(), call.out = out->typed_data();
  call.tables = tables.typed_data(), call.starts = starts.typed_data();
  call.kv_lens = kv_lens.typed_data();
  if (sinks.size()) call.sinks = sinks.get<Floats>(0)->typed_data();
  call.tokens = q.dimensions()[0], call.q_heads = q.dimensions()[1];
  call.head_dim = q.dimensions()[2], call.block_size = k.dimensions()[1];
  call.kv_heads = k.dimensions()[2];
  call.seqs = tables.dimensions()[0], call.max_blocks = tables.dimensions()[1];
  return call;
}

ffi::Error run_attention(ffi::ThreadPool pool, Floats q, ffi::AnyBuffer k, ffi::AnyBuffer v,
                         Indices tables, Indices starts, Indices kv_lens, ffi::RemainingArgs sinks,
                         ffi::Result<Floats> out, float scale, float softcap, int64_t window) {
  auto run = [&](auto call) {
    call.scale = scale, call.softcap = softcap, call.window = window;
    return attend(pool, call, k, v);
  };
  switch (k.element_type()) {
    case ffi::F32: return run(describe<float>(q, k, tables, starts, kv_lens, sinks, out));
    case ffi::BF16:
    case ffi::U16: return run(describe<uint16_t>(q, k, tables, starts, kv_lens, sinks, out));
    default: return ffi::Error::InvalidArgument("the pool must be float32 or bfloat16");
  }
}

}  // namespace
}  // namespace paged_jax

XLA_FFI_DEFINE_HANDLER_SYMBOL(PagedAttention, paged_jax::run_attention,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<paged_jax::Floats>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<paged_jax::Indices>()
                                  .Arg<paged_jax::Indices>()
                                  .Arg<paged_jax::Indices>()
                                  .RemainingArgs()
                                  .Ret<paged_jax::Floats>()
                                  .Attr<float>("scale")
                                  .Attr<float>("softcap")
                                  .Attr<int64_t>("window"));

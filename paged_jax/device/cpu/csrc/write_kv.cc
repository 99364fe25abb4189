// The write of new keys and values into the pool, in place: the pool is both argument and result.
#include "parallel.h"
#include "simd.h"
#include "xla/ffi/api/ffi.h"

namespace paged_jax {
namespace {

namespace ffi = xla::ffi;
using Slots = ffi::Buffer<ffi::S32>;

constexpr int64_t kTokensPerTask = 64;

inline void convert(float from, float& to) { to = from; }
inline void convert(uint16_t from, uint16_t& to) { to = from; }
inline void convert(uint16_t from, float& to) { to = to_float(from); }
inline void convert(float from, uint16_t& to) { to = to_bfloat16(from); }

// Rows [first, last) of `values` to their slots. Slot 0 takes padding, which nobody reads: two
// threads would write there at once, so nobody does.
template <class From, class To>
void write_rows(const ffi::AnyBuffer& values, To* pool, const int32_t* slots, int64_t first,
                int64_t last) {
  int64_t size = values.dimensions()[1] * values.dimensions()[2];
  const From* from = static_cast<const From*>(values.untyped_data()) + first * size;
  for (int64_t token = first; token < last; ++token, from += size) {
    if (slots[token] == 0) continue;
    To* to = pool + int64_t(slots[token]) * size;
    for (int64_t i = 0; i < size; ++i) convert(from[i], to[i]);
  }
}

bool is_float(const ffi::AnyBuffer& buffer) { return buffer.element_type() == ffi::F32; }

void write_rows(const ffi::AnyBuffer& values, ffi::AnyBuffer& pool, const int32_t* slots,
                int64_t first, int64_t last) {
  void* to = pool.untyped_data();
  auto run = [&](auto* typed) {
    if (is_float(values))
      write_rows<float>(values, typed, slots, first, last);
    else
      write_rows<uint16_t>(values, typed, slots, first, last);
  };
  is_float(pool) ? run(static_cast<float*>(to)) : run(static_cast<uint16_t*>(to));
}

ffi::Error run_write(ffi::ThreadPool threads, ffi::AnyBuffer, ffi::AnyBuffer, ffi::AnyBuffer k,
                     ffi::AnyBuffer v, Slots slots, ffi::Result<ffi::AnyBuffer> k_pool,
                     ffi::Result<ffi::AnyBuffer> v_pool) {
  int64_t tokens = slots.dimensions()[0];
  parallel_for(threads, (tokens + kTokensPerTask - 1) / kTokensPerTask, [&](int64_t task) {
    int64_t first = task * kTokensPerTask, last = std::min(first + kTokensPerTask, tokens);
    write_rows(k, *k_pool, slots.typed_data(), first, last);
    write_rows(v, *v_pool, slots.typed_data(), first, last);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace paged_jax

XLA_FFI_DEFINE_HANDLER_SYMBOL(WriteKv, paged_jax::run_write,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<paged_jax::Slots>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>());

// The write of new keys and values into the pool, in place: the pool is both argument and result.
// Queries and keys are rotated to their positions on the way where they are not yet.
#include <algorithm>
#include <vector>

#include "parallel.h"
#include "simd.h"
#include "xla/ffi/api/ffi.h"

namespace paged_jax {
namespace {

namespace ffi = xla::ffi;
using Slots = ffi::Buffer<ffi::S32>;
using Floats = ffi::Buffer<ffi::F32>;

constexpr int64_t kTokensPerTask = 32;

inline void convert(float from, float& to) { to = from; }
inline void convert(uint16_t from, uint16_t& to) { to = from; }
inline void convert(uint16_t from, float& to) { to = to_float(from); }
inline void convert(float from, uint16_t& to) { to = to_bfloat16(from); }

// Rows of `size` values to their slots. Slot 0 takes padding, which nobody reads: two threads would
// write there at once, so nobody does.
template <class From, class To>
void write_rows(const From* from, To* pool, const int32_t* slots, int64_t size, int64_t count) {
  for (int64_t row = 0; row < count; ++row, from += size) {
    if (slots[row] == 0) continue;
    To* to = pool + int64_t(slots[row]) * size;
    for (int64_t i = 0; i < size; ++i) convert(from[i], to[i]);
  }
}

bool is_float(const ffi::AnyBuffer& buffer) { return buffer.element_type() == ffi::F32; }

template <class From>
void write_rows(const From* from, ffi::AnyBuffer& pool, const int32_t* slots, int64_t size,
                int64_t count) {
  if (is_float(pool))
    write_rows(from, static_cast<float*>(pool.untyped_data()), slots, size, count);
  else
    write_rows(from, static_cast<uint16_t*>(pool.untyped_data()), slots, size, count);
}

// Tokens [first, last) of `values`.
void write_tokens(const ffi::AnyBuffer& values, ffi::AnyBuffer& pool, const Slots& slots,
                  int64_t first, int64_t last) {
  int64_t size = values.dimensions()[1] * values.dimensions()[2];
  auto write = [&](const auto* from) {
    write_rows(from + first * size, pool, slots.typed_data() + first, size, last - first);
  };
  is_float(values) ? write(static_cast<const float*>(values.untyped_data()))
                   : write(static_cast<const uint16_t*>(values.untyped_data()));
}

// Calls body(first, last) for all tokens, some at a time.
template <class Body>
ffi::Error for_tokens(ffi::ThreadPool& threads, const Slots& slots, const Body& body) {
  int64_t tokens = slots.dimensions()[0];
  parallel_for(threads, (tokens + kTokensPerTask - 1) / kTokensPerTask, [&](int64_t task) {
    int64_t first = task * kTokensPerTask;
    body(first, std::min(first + kTokensPerTask, tokens));
  });
  return ffi::Error::Success();
}

ffi::Error run_write(ffi::ThreadPool threads, ffi::AnyBuffer, ffi::AnyBuffer, ffi::AnyBuffer k,
                     ffi::AnyBuffer v, Slots slots, ffi::Result<ffi::AnyBuffer> k_pool,
                     ffi::Result<ffi::AnyBuffer> v_pool) {
  return for_tokens(threads, slots, [&](int64_t first, int64_t last) {
    write_tokens(k, *k_pool, slots, first, last);
    write_tokens(v, *v_pool, slots, first, last);
  });
}

// Cosine and sine of each token's angles.
struct Angles {
  const float* cos;
  const float* sin;
  int64_t half;
};

// Turns the halves of each head of tokens [first, last) against each other.
void rotate(const Floats& heads, const Angles& angles, int64_t first, int64_t last,
            float* __restrict to) {
  int64_t num_heads = heads.dimensions()[1], half = angles.half;
  const float* from = heads.typed_data() + first * num_heads * 2 * half;
  for (int64_t token = first; token < last; ++token) {
    const float *cos = angles.cos + token * half, *sin = angles.sin + token * half;
    for (int64_t head = 0; head < num_heads; ++head, from += 2 * half, to += 2 * half)
      for (int64_t d = 0; d < half; ++d) {
        to[d] = from[d] * cos[d] - from[half + d] * sin[d];
        to[half + d] = from[half + d] * cos[d] + from[d] * sin[d];
      }
  }
}

ffi::Error run_rotate_write(ffi::ThreadPool threads, ffi::AnyBuffer, ffi::AnyBuffer, Floats q,
                            Floats k, Floats v, Floats cos, Floats sin, Slots slots,
                            ffi::Result<Floats> turned, ffi::Result<ffi::AnyBuffer> k_pool,
                            ffi::Result<ffi::AnyBuffer> v_pool) {
  Angles angles{cos.typed_data(), sin.typed_data(), cos.dimensions()[1]};
  int64_t q_size = q.dimensions()[1] * q.dimensions()[2];
  int64_t k_size = k.dimensions()[1] * k.dimensions()[2];
  return for_tokens(threads, slots, [&](int64_t first, int64_t last) {
    rotate(q, angles, first, last, turned->typed_data() + first * q_size);
    thread_local std::vector<float> keys;
    keys.resize((last - first) * k_size);
    rotate(k, angles, first, last, keys.data());
    write_rows(keys.data(), *k_pool, slots.typed_data() + first, k_size, last - first);
    write_rows(v.typed_data() + first * k_size, *v_pool, slots.typed_data() + first, k_size,
               last - first);
  });
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(RotateWrite, paged_jax::run_rotate_write,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<paged_jax::Floats>()
                                  .Arg<paged_jax::Floats>()
                                  .Arg<paged_jax::Floats>()
                                  .Arg<paged_jax::Floats>()
                                  .Arg<paged_jax::Floats>()
                                  .Arg<paged_jax::Slots>()
                                  .Ret<paged_jax::Floats>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>());

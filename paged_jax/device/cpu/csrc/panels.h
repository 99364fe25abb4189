// The packed layout of a matrix: panels of kPanelWidth outputs.
//
// A panel holds the weights of its outputs input by input, so that memory is read in order: float
// and int8 as [inner][kPanelWidth]; bfloat16 in pairs of inputs, as AVX512-BF16 wants it, as
// [inner / 2, rounded up][kPanelWidth][2].
#pragma once

#include <type_traits>

#include "simd.h"

namespace paged_jax {

using Bfloat16 = uint16_t;

constexpr int kPanelWidth = 2 * kLanes;

template <class W>
int64_t panel_size(int64_t inner) {
  return (std::is_same_v<W, Bfloat16> ? (inner + 1) / 2 * 2 : inner) * kPanelWidth;
}

// Fills the panels of a matrix given by its strides, in elements; what fills them up is 0.
template <class W>
void pack(const W* from, int64_t inner, int64_t outer, int64_t inner_stride, int64_t outer_stride,
          W* to) {
  constexpr int64_t step = std::is_same_v<W, Bfloat16> ? 2 : 1;
  for (int64_t first = 0; first < outer; first += kPanelWidth)
    for (int64_t k = 0; k < inner; k += step)
      for (int64_t column = first; column < first + kPanelWidth; ++column)
        for (int64_t i = k; i < k + step; ++i)
          *to++ = i < inner && column < outer ? from[i * inner_stride + column * outer_stride] : W();
}

// One row of a packed matrix's transpose: the weights of output `column`, as floats; not of int8.
template <class W>
void read_column(const W* panels, int64_t inner, int64_t column, float* to) {
  const W* panel = panels + column / kPanelWidth * panel_size<W>(inner);
  int64_t lane = column % kPanelWidth;
  for (int64_t k = 0; k < inner; ++k) {
    if constexpr (std::is_same_v<W, Bfloat16>)
      to[k] = to_float(panel[(k / 2 * kPanelWidth + lane) * 2 + k % 2]);
    else
      to[k] = panel[k * kPanelWidth + lane];
  }
}

}  // namespace paged_jax

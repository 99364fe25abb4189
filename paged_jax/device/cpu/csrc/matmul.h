// y = x @ W for any number of rows; W is packed into panels of kPanelWidth outputs.
//
// A panel holds the weights of its outputs input by input, so that memory is read in order: float
// and int8 as [inner][kPanelWidth]; bfloat16 in pairs of inputs, as AVX512-BF16 wants it, as
// [inner / 2, rounded up][kPanelWidth][2]. Outputs beyond the last are computed and dropped. Every
// element is one sum over the inputs in their order, whatever tile it falls in, so that a row's
// result does not depend on the rows beside it.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel.h"
#include "simd.h"

namespace paged_jax {

using Bfloat16 = uint16_t;

constexpr int kPanelWidth = 2 * kLanes;
constexpr int kMaxTileRows = kLanes == 8 ? 6 : 12;  // times two sums: what the registers hold
constexpr int64_t kRowBlockBytes = 256 << 10;       // rows that pass over a panel together: in L2
constexpr int64_t kTaskBytes = 32 << 10;            // weights read by a task, at least

constexpr int64_t kPrefetchBytes = 1024;

// One of the matrices that a call multiplies the same rows with.
struct Matrix {
  const void* panels;
  const float* scales;  // of each output, or null
  int64_t outer;
  float* out;  // [rows, outer]; not read of the second of a gated pair

  int64_t num_panels() const { return (outer + kPanelWidth - 1) / kPanelWidth; }
};

template <class X>
struct Rows {
  const X* first;
  int64_t stride;

  const X* at(int64_t row) const { return first + row * stride; }
};

// Products of bfloat16 read the rows as pairs where such products are one instruction.
template <class W>
constexpr bool kReadsPairs = kHasBf16Dot && std::is_same_v<W, Bfloat16>;
template <class W>
using RowsFor = Rows<std::conditional_t<kReadsPairs<W>, uint32_t, float>>;

template <class W>
int64_t panel_size(int64_t inner) {
  return (std::is_same_v<W, Bfloat16> ? (inner + 1) / 2 * 2 : inner) * kPanelWidth;
}

template <int R, int P>
struct Sums {
  Vec of[P][R][2];
};

// Asks for what is read next, ahead of the hardware: measured to gain 15 to 25 %.
inline void prefetch(const void* panel) {
  __builtin_prefetch(static_cast<const char*>(panel) + kPrefetchBytes);
}

template <int R>
inline void add_products(Vec (&sums)[R][2], const Rows<float>& x, int64_t k, Vec weights,
                         Vec more_weights) {
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    Vec input = splat(x.at(r)[k]);
    sums[r][0] += input * weights;
    sums[r][1] += input * more_weights;
  }
}

// Adds input k of a panel of floats or int8.
template <int R, class W>
inline void add_input(Vec (&sums)[R][2], const Rows<float>& x, int64_t k, const W* panel) {
  panel += k * kPanelWidth;
  if (R > 1 || sizeof(W) == 1) prefetch(panel);  // one row of floats is fastest without
  add_products<R>(sums, x, k, load(panel), load(panel + kLanes));
}

// Adds both inputs of a pair of a bfloat16 panel, or its first alone.
template <int R>
inline void add_pair(Vec (&sums)[R][2], const Rows<float>& x, int64_t pair,
                     const Bfloat16* panel, bool has_second = true) {
  panel += 2 * pair * kPanelWidth;
  prefetch(panel);
  Bits weights = load_as<Bits>(panel), more = load_as<Bits>(panel + kPanelWidth);
  add_products<R>(sums, x, 2 * pair, first_of_pair(weights), first_of_pair(more));
  if (has_second)
    add_products<R>(sums, x, 2 * pair + 1, second_of_pair(weights), second_of_pair(more));
}

template <int R>
inline void add_pair(Vec (&sums)[R][2], const Rows<uint32_t>& x, int64_t pair,
                     const Bfloat16* panel, bool has_second = true) {
  panel += 2 * pair * kPanelWidth;
  prefetch(panel);
  Bits weights = load_as<Bits>(panel), more = load_as<Bits>(panel + kPanelWidth);
  if (!has_second) weights &= 0xffffu, more &= 0xffffu;  // what fills up the pair may be anything
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    Bits input = Bits{} + x.at(r)[pair];
    sums[r][0] = dot_pairs(sums[r][0], input, weights);
    sums[r][1] = dot_pairs(sums[r][1], input, more);
  }
}

// The sums of R rows and P panels.
template <int R, int P, class W>
inline Sums<R, P> sum_tile(const RowsFor<W>& x, int64_t inner, const W* const (&panels)[P]) {
  Sums<R, P> sums = {};
  if constexpr (std::is_same_v<W, Bfloat16>) {
    for (int64_t pair = 0; pair < inner / 2; ++pair)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) add_pair<R>(sums.of[p], x, pair, panels[p]);
    if (inner % 2)
      for (int p = 0; p < P; ++p) add_pair<R>(sums.of[p], x, inner / 2, panels[p], false);
  } else {
    for (int64_t k = 0; k < inner; ++k)
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) add_input<R>(sums.of[p], x, k, panels[p]);
  }
  return sums;
}

// Everything a call multiplies. Gated: the two matrices give silu(x @ first) * (x @ second).
template <class W>
struct Product {
  RowsFor<W> x;
  int64_t rows, inner;
  std::vector<Matrix> matrices;
  bool is_gated;

  int64_t num_columns() const {  // panels, of gated pairs the first's alone
    int64_t total = 0;
    for (const Matrix& matrix : matrices) total += matrix.num_panels();
    return is_gated ? total / 2 : total;
  }
};

// One panel of one matrix.
template <class W>
struct Panel {
  const Matrix* matrix;
  int64_t index;

  Panel(const Product<W>& product, int64_t column) : matrix(product.matrices.data()) {
    for (; column >= matrix->num_panels(); ++matrix) column -= matrix->num_panels();
    index = column;
  }
  int64_t first() const { return index * kPanelWidth; }
  int64_t width() const { return std::min<int64_t>(kPanelWidth, matrix->outer - first()); }
  const W* weights(int64_t inner) const {
    return static_cast<const W*>(matrix->panels) + index * panel_size<W>(inner);
  }
};

template <class W, int R>
void scale(Vec (&sums)[R][2], const Panel<W>& panel) {
  if (!panel.matrix->scales) return;
  float scales[kPanelWidth] = {};
  std::copy_n(panel.matrix->scales + panel.first(), panel.width(), scales);
  for (int r = 0; r < R; ++r)
    for (int half = 0; half < 2; ++half) sums[r][half] *= load(scales + half * kLanes);
}

template <class W, int R>
void write(const Vec (&sums)[R][2], const Panel<W>& panel, int64_t row) {
  int64_t outer = panel.matrix->outer;
  float* out = panel.matrix->out + row * outer + panel.first();
  for (int r = 0; r < R; ++r, out += outer) {
    if (panel.width() == kPanelWidth) {
      store(out, sums[r][0]);
      store(out + kLanes, sums[r][1]);
    } else {
      float values[kPanelWidth];
      store(values, sums[r][0]);
      store(values + kLanes, sums[r][1]);
      std::copy_n(values, panel.width(), out);
    }
  }
}

inline Vec silu(Vec x) { return x / (exp(-x) + 1.0f); }

// Rows [row, row + R) of columns [column, column + P).
template <class W, int R, int P>
void multiply_tile(const Product<W>& product, int64_t row, int64_t column) {
  RowsFor<W> x{product.x.at(row), product.x.stride};
  auto sums_from = [&](int64_t first) {
    const W* panels[P];
    for (int p = 0; p < P; ++p) panels[p] = Panel<W>(product, first + p).weights(product.inner);
    auto sums = sum_tile<R, P, W>(x, product.inner, panels);
    for (int p = 0; p < P; ++p) scale<W, R>(sums.of[p], Panel<W>(product, first + p));
    return sums;
  };
  auto sums = sums_from(column);
  if (product.is_gated) {
    auto others = sums_from(column + product.num_columns());
    for (int p = 0; p < P; ++p)
      for (int r = 0; r < R; ++r)
        for (int half = 0; half < 2; ++half)
          sums.of[p][r][half] = silu(sums.of[p][r][half]) * others.of[p][r][half];
  }
  for (int p = 0; p < P; ++p) write<W, R>(sums.of[p], Panel<W>(product, column + p), row);
}

// Few rows read several panels at once: enough independent sums to hide the latency of each.
constexpr int panels_at_once(int rows) { return rows <= 3 ? 2 : 1; }

template <class W, int R>
void multiply_rows(const Product<W>& product, int64_t row, int64_t column, int64_t end) {
  constexpr int P = panels_at_once(R);
  for (; column + P <= end; column += P) multiply_tile<W, R, P>(product, row, column);
  for (; column < end; ++column) multiply_tile<W, R, 1>(product, row, column);
}

template <class W, int... R>
void multiply_rows(int64_t num_rows, std::integer_sequence<int, R...>, const Product<W>& product,
                   int64_t row, int64_t column, int64_t end) {
  ((num_rows == R + 1 ? multiply_rows<W, R + 1>(product, row, column, end) : void()), ...);
}

// Cuts [0, total) into `parts` of sizes that differ by one at most.
inline int64_t part_start(int64_t total, int64_t parts, int64_t part) {
  return total / parts * part + std::min(part, total % parts);
}

// A block of rows times some columns: for each column, tile after tile.
template <class W>
void multiply_block(const Product<W>& product, int64_t row, int64_t end_row, int64_t column,
                    int64_t end) {
  constexpr auto sizes = std::make_integer_sequence<int, kMaxTileRows>();
  int64_t rows = end_row - row, tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  int64_t step = tiles > 1 ? 1 : end - column;
  for (; column < end; column += step)
    for (int64_t tile = 0; tile < tiles; ++tile) {
      int64_t first = part_start(rows, tiles, tile), last = part_start(rows, tiles, tile + 1);
      multiply_rows<W>(last - first, sizes, product, row + first, column,
                       std::min(column + step, end));
    }
}

template <class W, class Pool>
void multiply(Pool& pool, const Product<W>& product) {
  if (product.rows == 0) return;
  int64_t row_bytes = product.inner * sizeof(*product.x.first);
  int64_t block = std::max<int64_t>(kRowBlockBytes / row_bytes, 2 * kMaxTileRows);
  int64_t blocks = (product.rows + block - 1) / block;
  int64_t columns = product.num_columns();
  int64_t panel_bytes = panel_size<W>(product.inner) * sizeof(W) * (product.is_gated ? 2 : 1);
  int64_t groups = (columns + 1) / 2;
  groups = std::max<int64_t>(1, std::min(groups, columns * panel_bytes / kTaskBytes));
  parallel_for(pool, blocks * groups, [&](int64_t task) {
    int64_t of_rows = task / groups, of_columns = task % groups;
    multiply_block(product, part_start(product.rows, blocks, of_rows),
                   part_start(product.rows, blocks, of_rows + 1),
                   part_start(columns, groups, of_columns),
                   part_start(columns, groups, of_columns + 1));
  });
}

// Rounds a row to bfloat16 pairs; what fills up the last pair is 0.
inline void round_row(const float* from, int64_t inner, uint32_t* to) {
  for (int64_t k = 0; k < inner; k += 2) {
    uint32_t second = k + 1 < inner ? to_bfloat16(from[k + 1]) : 0;
    to[k / 2] = to_bfloat16(from[k]) | second << 16;
  }
}

// Multiplies [rows, inner] floats with matrices of W.
template <class W, class Pool>
void multiply(Pool& pool, const float* x, int64_t rows, int64_t inner,
              std::vector<Matrix> matrices, bool is_gated) {
  Product<W> product{{}, rows, inner, std::move(matrices), is_gated};
  if constexpr (kReadsPairs<W>) {
    int64_t pairs = (inner + 1) / 2;
    std::vector<uint32_t> rounded(rows * pairs);
    for (int64_t row = 0; row < rows; ++row)
      round_row(x + row * inner, inner, rounded.data() + row * pairs);
    product.x = {rounded.data(), pairs};
    multiply(pool, product);
  } else {
    product.x = {x, inner};
    multiply(pool, product);
  }
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

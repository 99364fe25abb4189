// y = x @ W for any number of rows; W is packed (panels.h).
//
// Outputs beyond the last are computed and dropped. Every element is one sum over the inputs in
// their order, whatever tile it falls in, so that a row's result does not depend on the rows beside
// it.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "matmul_tile.h"
#include "parallel.h"

namespace paged_jax {

constexpr int64_t kRowBlockBytes = 256 << 10;       // rows that pass over a panel together: in L2
constexpr int64_t kTaskBytes = 32 << 10;            // weights read by a task, at least

// One of the matrices that a call multiplies the same rows with.
struct Matrix {
  const void* panels;
  const float* scales;  // of each output, or null
  int64_t outer;
  float* out;  // [rows, outer]; not read of the second of a gated pair

  int64_t num_panels() const { return (outer + kPanelWidth - 1) / kPanelWidth; }
};

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

// silu(sums) * others.
template <int R>
void gate(Vec (&sums)[R][2], const Vec (&others)[R][2]) {
  for (int r = 0; r < R; ++r)
    for (int half = 0; half < 2; ++half)
      sums[r][half] = sums[r][half] / (exp(-sums[r][half]) + 1.0f) * others[r][half];
}

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
    for (int p = 0; p < P; ++p) gate<R>(sums.of[p], others.of[p]);
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

// Cuts [0, total) into `parts` of sizes that differ by one at most.
inline int64_t part_start(int64_t total, int64_t parts, int64_t part) {
  return total / parts * part + std::min(part, total % parts);
}

template <class Body, int... R>
void call_with_size(int64_t size, const Body& body, std::integer_sequence<int, R...>) {
  ((size == R + 1 ? body(std::integral_constant<int, R + 1>()) : void()), ...);
}

// Calls body(size, first) for tiles that cover `rows`; the size is a constant of its type.
template <class Body>
void for_tiles(int64_t rows, const Body& body) {
  int64_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    int64_t first = part_start(rows, tiles, tile), last = part_start(rows, tiles, tile + 1);
    call_with_size(last - first, [&](auto size) { body(size, first); },
                   std::make_integer_sequence<int, kMaxTileRows>());
  }
}

// A block of rows times some columns: for each column, tile after tile.
template <class W>
void multiply_block(const Product<W>& product, int64_t row, int64_t end_row, int64_t column,
                    int64_t end) {
  int64_t step = end_row - row > kMaxTileRows ? 1 : end - column;
  for (; column < end; column += step)
    for_tiles(end_row - row, [&](auto size, int64_t first) {
      multiply_rows<W, size.value>(product, row + first, column, std::min(column + step, end));
    });
}

template <class W, class Pool>
void multiply(Pool& pool, const Product<W>& product) {
  if (product.rows == 0) return;
  int64_t row_bytes = product.inner * sizeof(*product.x.first);
  int64_t tiles = (product.rows + kMaxTileRows - 1) / kMaxTileRows;
  int64_t tiles_of_block = std::max<int64_t>(kRowBlockBytes / row_bytes / kMaxTileRows, 2);
  int64_t blocks = (tiles + tiles_of_block - 1) / tiles_of_block;
  int64_t columns = product.num_columns();
  int64_t panel_bytes = panel_size<W>(product.inner) * sizeof(W) * (product.is_gated ? 2 : 1);
  int64_t groups = (columns + 1) / 2;
  groups = std::max<int64_t>(1, std::min(groups, columns * panel_bytes / kTaskBytes));
  parallel_for(pool, blocks * groups, [&](int64_t task) {
    int64_t of_rows = task / groups, of_columns = task % groups;
    int64_t row = part_start(tiles, blocks, of_rows) * kMaxTileRows;
    int64_t end_row = part_start(tiles, blocks, of_rows + 1) * kMaxTileRows;
    end_row = std::min(end_row, product.rows);
    int64_t column = part_start(columns, groups, of_columns);
    int64_t end = part_start(columns, groups, of_columns + 1);
    multiply_block(product, row, end_row, column, end);
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

}  // namespace paged_jax

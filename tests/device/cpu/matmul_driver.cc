// Every path of matmul.h against sums in double, without XLA, so that sanitizers can watch it.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "matmul.h"
#include "threads.h"

using namespace paged_jax;

template <class W>
W weight() {
  if (std::is_same_v<W, int8_t>) return W(std::rand() % 255 - 127);
  if (std::is_same_v<W, Bfloat16>) return W(to_bfloat16(uniform()));
  return W(uniform());
}

template <class W>
double wide(W value) {
  return std::is_same_v<W, Bfloat16> ? to_float(value) : double(value);
}

template <class W>
double rounded(float x) {
  return kReadsPairs<W> ? to_float(to_bfloat16(x)) : x;
}

void check(double found, double expected, double size, const char* what) {
  if (std::fabs(found - expected) <= 1e-5 * size + 1e-6) return;
  std::printf("%s: %g instead of %g\n", what, found, expected);
  std::exit(1);
}

template <class W>
void check_shape(int threads, int64_t rows, int64_t inner, int64_t outer, bool is_gated) {
  std::vector<W> plain(inner * outer);
  for (W& value : plain) value = weight<W>();
  std::vector<float> x(rows * inner), scales(outer, 0.01f), y(rows * outer);
  for (float& value : x) value = uniform();
  int64_t panels = (outer + kPanelWidth - 1) / kPanelWidth;
  std::vector<W> packed(panels * panel_size<W>(inner));
  pack(plain.data(), inner, outer, outer, int64_t(1), packed.data());
  bool is_scaled = std::is_same_v<W, int8_t>;
  Matrix matrix{packed.data(), is_scaled ? scales.data() : nullptr, outer, y.data()};
  std::vector<Matrix> matrices(is_gated ? 2 : 1, matrix);
  {
    Threads pool{threads, {}};
    multiply<W>(pool, x.data(), rows, inner, matrices, is_gated);
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < outer; ++column) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < inner; ++k) {
        double product = rounded<W>(x[row * inner + k]) * wide(plain[k * outer + column]);
        product *= is_scaled ? scales[column] : 1;
        sum += product, size += std::fabs(product);
      }
      if (is_gated) size += 1, sum = sum / (1 + std::exp(-sum)) * sum;
      check(y[row * outer + column], sum, size, "product");
    }
}

template <class W>
void check_columns(int64_t inner, int64_t outer) {
  std::vector<W> plain(inner * outer), packed((outer / kPanelWidth + 1) * panel_size<W>(inner));
  for (W& value : plain) value = weight<W>();
  pack(plain.data(), inner, outer, outer, int64_t(1), packed.data());
  std::vector<float> found(inner);
  for (int64_t column = 0; column < outer; ++column) {
    read_column(packed.data(), inner, column, found.data());
    for (int64_t k = 0; k < inner; ++k)
      check(found[k], wide(plain[k * outer + column]), 0, "column");
  }
}

template <class W>
void check_type() {
  for (int threads : {1, 2, 3})
    for (int64_t rows : {1, 2, 3, 4, 6, 7, 13, 40})
      for (int64_t inner : {1, 33, 64})
        for (int64_t outer : {1, 45, 160})
          for (bool is_gated : {false, true})
            check_shape<W>(threads, rows, inner, outer, is_gated);
  check_columns<W>(33, 45);
}

int main() {
  check_type<float>();
  check_type<Bfloat16>();
  check_type<int8_t>();
  std::puts("all products agree");
}

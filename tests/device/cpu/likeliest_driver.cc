// likeliest.h against the argmax of matmul.h's products, without XLA, so that sanitizers can watch it.
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "likeliest.h"
#include "threads.h"

using namespace paged_jax;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  const char* name;
  float weight_size, row_size;
  float odd_weight = 0, odd_row = 0;  // instead of some items, unless 0
  int64_t period = 0;                 // so many outputs, again and again: ties
};

constexpr Case kCases[] = {
    {"plain", 1, 1},
    {"large", 1e18f, 1e15f},
    {"small", 1e-25f, 1e-20f},
    {"nearly nothing", 1e-30f, 1e-14f},
    {"one large item", 1, 1, 1e4f, 3e3f},
    {"ties", 1, 1, 0, 0, 3},
    {"zeros", 0, 1},
    {"infinite row", 1, 1, 0, kInfinity},
    {"NaN in a row", 1, 1, 0, kNan},
    {"infinite weight", 1, 1, -kInfinity},
    {"NaN among the weights", 1, 1, kNan},
};

void check(const Case& of, int threads, int64_t rows, int64_t inner, int64_t outer, int64_t limit) {
  std::vector<Bfloat16> plain(inner * outer);
  for (int64_t k = 0; k < inner; ++k)
    for (int64_t column = 0; column < outer; ++column)
      plain[k * outer + column] = of.period && column >= of.period
                                      ? plain[k * outer + column % of.period]
                                      : to_bfloat16(uniform() * of.weight_size);
  if (of.odd_weight) plain[std::rand() % plain.size()] = to_bfloat16(of.odd_weight);
  std::vector<float> x(rows * inner), y(rows * outer);
  for (float& value : x) value = uniform() * of.row_size;
  if (of.odd_row) x[std::rand() % x.size()] = of.odd_row;
  std::vector<Bfloat16> packed((outer + kPanelWidth - 1) / kPanelWidth * panel_size<Bfloat16>(inner));
  pack(plain.data(), inner, outer, outer, int64_t(1), packed.data());
  {
    Threads pool{threads, {}};
    multiply<Bfloat16>(pool, x.data(), rows, inner, {{packed.data(), nullptr, outer, y.data()}}, false);
  }
  std::vector<Best> found;
  {
    Threads pool{threads, {}};
    found = Search(x.data(), rows, inner, packed.data(), limit).run(pool);
  }
  for (int64_t row = 0; row < rows; ++row) {
    int64_t best = -1;
    for (int64_t i = 0; i < limit; ++i)
      if (y[row * outer + i] > (best < 0 ? kLowest : y[row * outer + best])) best = i;
    if (found[row].index == std::max<int64_t>(best, 0)) continue;
    std::printf("%s: output %ld instead of %ld of %ld rows, %ld inputs, %ld outputs\n", of.name,
                long(found[row].index), long(best), long(rows), long(inner), long(outer));
    std::exit(1);
  }
}

int main() {
  for (const Case& of : kCases)
    for (int threads : {1, 3})
      for (int64_t rows : {1, 29})
        for (int64_t inner : {1, 33, 130})
          for (int64_t outer : {1, 45, 700})
            for (int64_t limit : {outer, (outer + 1) / 2})
              if (!kHasBf16Dot) check(of, threads, rows, inner, outer, limit);
  std::puts("all outputs agree");
}

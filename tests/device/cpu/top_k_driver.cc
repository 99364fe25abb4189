// top_k.h against a full sort, without XLA.
#include <cstdio>

#include "threads.h"
#include "top_k.h"

using namespace paged_jax;

void check(int64_t count, int64_t k, bool has_ties) {
  std::vector<float> row(count);
  std::vector<Ranked> all(count);
  for (int64_t i = 0; i < count; ++i) {
    row[i] = has_ties ? float(std::rand() % 5) : uniform();
    all[i] = {row[i], int32_t(i)};
  }
  std::sort(all.begin(), all.end());
  std::vector<float> values(k);
  std::vector<int32_t> indices(k);
  Candidates candidates(k);
  candidates.offer(row.data(), count);
  candidates.write(values.data(), indices.data());
  for (int64_t i = 0; i < k; ++i)
    if (values[i] != all[i].value || indices[i] != all[i].index) {
      std::printf("place %d of %d in %d is wrong\n", int(i), int(k), int(count));
      std::exit(1);
    }
}

int main() {
  for (int64_t count : {1, 7, 64, 65, 1000, 4099})
    for (int64_t k : {1, 20, 256})
      for (bool has_ties : {false, true}) check(count, std::min(count, k), has_ties);
  std::puts("all orders agree");
}

// What the drivers share: a pool without XLA, and numbers.
#pragma once

#include <cstdlib>
#include <thread>
#include <vector>

// Runs every task on a new thread, and so is as free in its order as a pool can be.
struct Threads {
  int count;
  std::vector<std::thread> started;

  int num_threads() const { return count; }
  template <class F>
  void Schedule(F f) {
    started.emplace_back(std::move(f));
  }
  ~Threads() {
    for (auto& thread : started) thread.join();
  }
};

inline float uniform() { return float(std::rand()) / RAND_MAX - 0.5f; }

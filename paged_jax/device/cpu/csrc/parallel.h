// parallel_for over a thread pool: the calling thread works too, and whoever is free takes the next
// task. A helper that wakes after all tasks are taken finds nothing to do, so the caller never
// waits for a thread to start.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

namespace paged_jax {

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr int kSpins = 2000;  // then a helper that has a task may need this core to end it

struct Job {
  std::atomic<int64_t> next{0}, done{0};
  int64_t num_tasks;
  void (*run)(const void* body, int64_t task);
  const void* body;  // the caller's; alive until done == num_tasks

  void work() {
    for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) {
      run(body, task);
      done.fetch_add(1, std::memory_order_release);
    }
  }
};

// Calls body(task) for each task in [0, num_tasks). `Pool` has num_threads() and Schedule(f), as
// xla::ffi::ThreadPool.
template <class Pool, class Body>
void parallel_for(Pool& pool, int64_t num_tasks, const Body& body) {
  int64_t helpers = pool.num_threads() - 1;
  if (helpers > num_tasks - 1) helpers = num_tasks - 1;
  if (helpers <= 0) {
    for (int64_t task = 0; task < num_tasks; ++task) body(task);
    return;
  }
  auto job = std::make_shared<Job>();
  job->num_tasks = num_tasks;
  job->run = [](const void* of, int64_t task) { (*static_cast<const Body*>(of))(task); };
  job->body = &body;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([job] { job->work(); });
  job->work();
  for (int spins = 0; job->done.load(std::memory_order_acquire) < num_tasks; ++spins)
    spins < kSpins ? pause() : std::this_thread::yield();
}

}  // namespace paged_jax

// Exercises the thread pool: regions, barriers, sleep and wake, several callers, shutdown. Meant for ThreadSanitizer,
// and run by `scripts/sanitize`. Prints one line and exits 0 if every check holds.
#include "base/thread_pool.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "thread_pool_test: %s\n", what);
  std::exit(1);
}

// Threads hand a counter round without atomics: only the barriers order the accesses.
void test_barrier_orders_plain_memory(int num_threads) {
  pelton::ThreadPool pool(num_threads);
  constexpr int kPhases = 200;
  for (int repeat = 0; repeat < 20; ++repeat) {
    long counter = 0;
    pool.run([&](int thread) {
      for (int phase = 0; phase < kPhases; ++phase) {
        if (phase % num_threads == thread) counter += thread + 1;
        pool.barrier();
      }
    });
    long expected = 0;
    for (int phase = 0; phase < kPhases; ++phase) expected += phase % num_threads + 1;
    require(counter == expected, "a barrier let a thread pass too early");
  }
}

void test_every_thread_runs_once_per_region(int num_threads) {
  pelton::ThreadPool pool(num_threads);
  std::vector<int> runs(static_cast<std::size_t>(num_threads), 0);
  for (int region = 1; region <= 300; ++region) {
    pool.run([&](int thread) { ++runs[static_cast<std::size_t>(thread)]; });
    for (const int count : runs) require(count == region, "a thread missed a region or ran it twice");
    // Long enough, now and then, for the workers to fall asleep.
    if (region % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void test_callers_take_turns() {
  pelton::ThreadPool pool(3);
  long total = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        pool.run([&](int thread) {
          if (thread == 0) ++total;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  require(total == 150, "regions of different callers overlapped");
}

}  // namespace

int main() {
  for (const int num_threads : {1, 2, 3, 5}) {
    test_barrier_orders_plain_memory(num_threads);
    test_every_thread_runs_once_per_region(num_threads);
  }
  test_callers_take_turns();
  std::printf("thread_pool_test: ok\n");
  return 0;
}

// Exercises the thread pool: regions, claimed items, sleep and wake, several callers, shutdown. Meant for
// ThreadSanitizer, and run by `scripts/sanitize`. Prints one line and exits 0 if every check holds.
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

void test_every_item_runs_once(int num_threads) {
  pelton::ThreadPool pool(num_threads);
  constexpr int kItems = 97;
  std::vector<int> runs(kItems, 0);
  for (int region = 1; region <= 500; ++region) {
    // Plain memory: only the pool orders these accesses.
    pool.for_each(kItems, [&](std::int64_t item) { ++runs[static_cast<std::size_t>(item)]; });
    for (const int count : runs) require(count == region, "an item was missed or ran twice");
    // Long enough, now and then, for the workers to fall asleep.
    if (region % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Stages as the executor has them: a stage starts when every item of the one before is done.
void test_stages_order_plain_memory(int num_threads) {
  pelton::ThreadPool pool(num_threads);
  constexpr int kStages = 50;
  constexpr int kItems = 8;
  struct Stage {
    std::atomic<int> next{0};
    std::atomic<int> done{0};
  };
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<Stage> stages(kStages);
    std::vector<std::vector<int>> values(kStages + 1, std::vector<int>(kItems, 0));
    pool.run([&](int) {
      for (std::size_t s = 0; s < kStages; ++s) {
        for (int i = stages[s].next.fetch_add(1); i < kItems; i = stages[s].next.fetch_add(1)) {
          int sum = 0;
          for (const int v : values[s]) sum += v;
          values[s + 1][static_cast<std::size_t>(i)] = sum % 1000 + i;
          stages[s].done.fetch_add(1, std::memory_order_acq_rel);
        }
        pelton::spin_until([&] { return stages[s].done.load(std::memory_order_acquire) == kItems; });
      }
    });
    for (std::size_t s = 0; s < kStages; ++s) {
      int sum = 0;
      for (const int v : values[s]) sum += v;
      for (int i = 0; i < kItems; ++i) {
        require(values[s + 1][static_cast<std::size_t>(i)] == sum % 1000 + i, "a stage started too early");
      }
    }
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
    test_every_item_runs_once(num_threads);
    test_stages_order_plain_memory(num_threads);
  }
  test_callers_take_turns();
  std::printf("thread_pool_test: ok\n");
  return 0;
}

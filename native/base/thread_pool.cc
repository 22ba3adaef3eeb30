#include "base/thread_pool.h"

#include <chrono>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pelton {

namespace {

// How long a worker waits for the next region before it sleeps: covers sampling and Python between two steps.
constexpr auto kRegionSpinTime = std::chrono::microseconds(300);

bool is_open(std::uint64_t region) { return region % 2 == 1; }

}  // namespace

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  // `yield` does nothing on most Arm cores; an `isb` empties the pipeline, some tens of cycles.
  asm volatile("isb");
#else
  std::this_thread::yield();
#endif
}

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  check(num_threads >= 1 && num_threads <= 1024, "num_threads must be 1 to 1024");
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { worker_loop(i); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(sleep_mutex_);
    is_stopping_.store(true);
    region_.fetch_add(2);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(const std::function<void(int)>& body) {
  const std::lock_guard<std::mutex> turn(run_mutex_);
  if (num_threads_ == 1) {
    body(0);
    return;
  }
  body_ = &body;
  region_.fetch_add(1);  // sequentially consistent with num_sleeping_: no wake-up is lost
  if (num_sleeping_.load() > 0) {
    const std::lock_guard<std::mutex> lock(sleep_mutex_);
    wake_.notify_all();
  }
  body(0);
  // Either a worker sees the region closed, or it is seen inside: both sides write first and read then.
  region_.fetch_add(1);
  spin_until([this] { return num_inside_.load() == 0; });
}

void ThreadPool::for_each(std::int64_t num_items, const std::function<void(std::int64_t)>& body) {
  std::atomic<std::int64_t> next{0};
  run([&](int) {
    for (std::int64_t i = next.fetch_add(1); i < num_items; i = next.fetch_add(1)) body(i);
  });
}

void ThreadPool::wait_for_region(std::uint64_t seen) {
  const auto deadline = std::chrono::steady_clock::now() + kRegionSpinTime;
  for (int spins = 1; region_.load() <= seen; ++spins) {
    pause_cpu();
    if (spins % 64 == 0 && std::chrono::steady_clock::now() > deadline) {
      std::unique_lock<std::mutex> lock(sleep_mutex_);
      num_sleeping_.fetch_add(1);
      wake_.wait(lock, [&] { return region_.load() > seen; });
      num_sleeping_.fetch_sub(1);
      return;
    }
  }
}

void ThreadPool::worker_loop(int thread_index) {
  std::uint64_t seen = 0;
  for (;;) {
    wait_for_region(seen);
    if (is_stopping_.load()) return;
    num_inside_.fetch_add(1);
    const std::uint64_t region = region_.load();
    if (is_open(region)) (*body_)(thread_index);
    num_inside_.fetch_sub(1);
    // An open region ends with the next number; a closed one is waited past.
    seen = is_open(region) ? region + 1 : region;
  }
}

}  // namespace pelton

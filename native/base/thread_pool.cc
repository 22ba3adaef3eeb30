#include "base/thread_pool.h"

#include <chrono>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pelton {

namespace {

// Spins before giving the core away. A pause is some 40 cycles on current x86, so a few tens of microseconds: longer
// than any phase imbalance of a healthy run, shorter than a scheduler slice when another process holds a core.
constexpr int kBarrierSpins = 4000;
// How long a worker waits for the next region before it sleeps: covers sampling and Python between two steps.
constexpr auto kRegionSpinTime = std::chrono::microseconds(300);

inline void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  check(num_threads >= 1 && num_threads <= 1024, "num_threads must be 1 to 1024");
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { worker_loop(i); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(sleep_mutex_);
    is_stopping_.store(true);
    region_.fetch_add(1);
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
  num_running_.store(num_threads_ - 1, std::memory_order_relaxed);
  region_.fetch_add(1);  // sequentially consistent with num_sleeping_: no wake-up is lost
  if (num_sleeping_.load() > 0) {
    const std::lock_guard<std::mutex> lock(sleep_mutex_);
    wake_.notify_all();
  }
  body(0);
  for (int spins = 0; num_running_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kBarrierSpins) {
      pause_cpu();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::barrier() {
  if (num_threads_ == 1) return;
  const std::uint64_t phase = phase_.load(std::memory_order_relaxed);
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
    num_arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
    if (spins < kBarrierSpins) {
      pause_cpu();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadPool::wait_for_region(std::uint64_t seen) {
  const auto deadline = std::chrono::steady_clock::now() + kRegionSpinTime;
  for (int spins = 1; region_.load(std::memory_order_acquire) == seen; ++spins) {
    pause_cpu();
    if (spins % 64 == 0 && std::chrono::steady_clock::now() > deadline) {
      std::unique_lock<std::mutex> lock(sleep_mutex_);
      num_sleeping_.fetch_add(1);
      wake_.wait(lock, [&] { return region_.load() != seen; });
      num_sleeping_.fetch_sub(1);
      return;
    }
  }
}

void ThreadPool::worker_loop(int thread_index) {
  std::uint64_t seen = 0;
  for (;;) {
    wait_for_region(seen);
    seen = region_.load(std::memory_order_acquire);
    if (is_stopping_.load()) return;
    (*body_)(thread_index);
    num_running_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace pelton

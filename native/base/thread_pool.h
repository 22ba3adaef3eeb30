// One pool of threads that run one parallel region at a time.
//
// The caller is thread 0. A region's work is claimed item by item, never dealt out to threads, so that a region ends as
// soon as its items are done: a thread that the system keeps from running delays nobody but the item in its hands, and
// a thread that wakes too late is not waited for. Waiting threads spin for a moment, because the next region is usually
// microseconds away, then sleep: an idle engine uses no CPU.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pelton {

// Waits, spinning first and then giving the core away, until is_done() holds.
template <typename Predicate>
void spin_until(Predicate is_done);

// Hint to the processor that this thread spins.
void pause_cpu();

class ThreadPool {
 public:
  // `num_threads` >= 1, the caller included; throws std::invalid_argument otherwise.
  explicit ThreadPool(int num_threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int num_threads() const { return num_threads_; }

  // Runs body(thread_index) on the caller and on every worker that comes in time, and returns when the caller's run
  // has ended and no worker is inside any more. `body` must not throw, must do all the work if it runs on one thread
  // only, and must leave when nothing is left. Calls from several threads take turns.
  void run(const std::function<void(int)>& body);

  // Calls body(item) for every item in [0, num_items), each once, on all threads.
  void for_each(std::int64_t num_items, const std::function<void(std::int64_t)>& body);

 private:
  void worker_loop(int thread_index);
  void wait_for_region(std::uint64_t seen);

  const int num_threads_;
  std::vector<std::thread> workers_;
  std::mutex run_mutex_;

  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> is_stopping_{false};
  const std::function<void(int)>* body_ = nullptr;

  // Odd while a region is open; changed at its start and at its end.
  alignas(64) std::atomic<std::uint64_t> region_{0};
  alignas(64) std::atomic<int> num_inside_{0};
};

// Spins before giving the core away. A pause is some 40 cycles on current x86, so some tens of microseconds: longer than
// any imbalance of a healthy run, shorter than a scheduler slice when another process holds a core.
inline constexpr int kSpinsBeforeYield = 2000;

template <typename Predicate>
void spin_until(Predicate is_done) {
  for (int spins = 0; !is_done(); ++spins) {
    if (spins < kSpinsBeforeYield) {
      pause_cpu();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace pelton

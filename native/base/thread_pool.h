// One pool of threads that run one parallel region at a time, with a barrier inside the region.
//
// The caller is thread 0. Waiting threads spin for a moment, because the next region or phase is usually microseconds
// away, then sleep: an idle engine uses no CPU.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pelton {

class ThreadPool {
 public:
  // `num_threads` >= 1, the caller included; throws std::invalid_argument otherwise.
  explicit ThreadPool(int num_threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  int num_threads() const { return num_threads_; }

  // Runs body(thread_index) on every thread and returns when all are done. `body` must not throw. Calls from several
  // threads take turns.
  void run(const std::function<void(int)>& body);

  // Waits until every thread of the region has arrived. Everything written before is visible after.
  void barrier();

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

  alignas(64) std::atomic<std::uint64_t> region_{0};
  alignas(64) std::atomic<int> num_running_{0};
  alignas(64) std::atomic<int> num_arrived_{0};
  alignas(64) std::atomic<std::uint64_t> phase_{0};
};

}  // namespace pelton

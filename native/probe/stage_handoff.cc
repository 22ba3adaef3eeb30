// What it costs to hand a stage from thread to thread, measured on a Program that does nothing else.
#include <chrono>

#include "base/check.h"
#include "probe/measure.h"
#include "program/program.h"

namespace pelton {

namespace {

using Clock = std::chrono::steady_clock;

// Long enough that every thread gets its own item rather than finding it taken by a faster one.
constexpr double kItemSeconds = 2e-6;

// One item per thread; an item waits for a fixed time.
class WaitNode : public Node {
 public:
  WaitNode() : Node("wait", Partition::kOther, Rows::kTokens, {}, {}) {}
  std::int64_t prepare(const StepContext& step) override { return step.pool->num_threads(); }
  void run(const StepContext&, std::int64_t, int) override {
    const Clock::time_point start = Clock::now();
    while (std::chrono::duration<double>(Clock::now() - start).count() < kItemSeconds) pause_cpu();
  }
};

}  // namespace

std::vector<double> measure_stage_handoff(const std::shared_ptr<ThreadPool>& pool, Isa isa, int num_stages,
                                          int num_repeats) {
  check(num_stages >= 1, "num_stages must be at least 1");
  // A program starts with an embedding: a matrix of one row.
  const std::vector<std::uint8_t> zeros(16 * sizeof(float));
  auto weight = std::make_shared<PackedWeight>(static_cast<std::uint32_t>(BlockType::kF32), 1, 16, zeros.data(),
                                               zeros.size(), *pool);
  Program program(pool, isa);
  const int buffer = program.add_buffer(16, Rows::kTokens, false);
  program.embed(std::move(weight), buffer);
  for (int i = 0; i < num_stages; ++i) program.append(std::make_unique<WaitNode>());
  program.seal(buffer);

  const std::int32_t token = 0, block = 0, context = 1;
  const std::int32_t cu_seqlens[2] = {0, 1};
  Batch batch;
  batch.num_tokens = batch.num_seqs = batch.table_width = 1;
  batch.token_ids = &token;
  batch.cu_seqlens = cu_seqlens;
  batch.context_lens = &context;
  batch.block_tables = &block;
  KvCache cache(1, 1, 16, 1, KvDtype::kF16);
  std::vector<double> seconds;
  for (int i = -1; i < num_repeats; ++i) {
    const Clock::time_point start = Clock::now();
    program.run(batch, cache);
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    // The first run lays out memory and wakes threads.
    if (i >= 0) seconds.push_back(elapsed / num_stages - kItemSeconds);
  }
  return seconds;
}

}  // namespace pelton

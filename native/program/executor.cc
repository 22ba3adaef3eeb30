// The part of Program that runs a step.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/check.h"
#include "program/program.h"

namespace pelton {

namespace {

// Room is made in steps of this many rows, so that growing sequences do not lay the arena out anew each step.
constexpr std::int64_t kCapacityStep = 64;

std::int64_t round_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

std::string name_of(const char* what, std::int64_t index) { return std::string(what) + "[" + std::to_string(index) + "]"; }

}  // namespace

void Program::check_batch(const Batch& batch, const KvCache& cache) const {
  check(logits_ >= 0, "the program is not sealed");
  check(batch.num_tokens >= 1 && batch.num_seqs >= 1, "the batch is empty");
  check(batch.num_tokens < (std::int64_t{1} << 24), "the batch has too many tokens");
  check(num_layers_ == 0 || cache.num_layers() >= num_layers_, "the KV cache has too few layers");
  if (num_heads_ > 0) {
    const KvLayer kv = cache.layer(0);
    check(kv.head_dim == head_dim_ && num_heads_ % kv.num_kv_heads == 0, "the KV cache does not fit the program's heads");
  }
  for (std::int64_t t = 0; t < batch.num_tokens; ++t) {
    check(batch.token_ids[t] >= 0 && batch.token_ids[t] < vocab_size_, "token id outside the vocabulary");
  }
  check(batch.cu_seqlens[0] == 0 && batch.cu_seqlens[batch.num_seqs] == batch.num_tokens,
        "cu_seqlens must run from 0 to the number of tokens");
  for (std::int64_t s = 0; s < batch.num_seqs; ++s) {
    const std::int64_t num_tokens = batch.cu_seqlens[s + 1] - batch.cu_seqlens[s];
    const std::int64_t context = batch.context_lens[s];
    check(num_tokens >= 1, "cu_seqlens must increase");
    check(context >= num_tokens, name_of("context_lens", s) + " is below the sequence's tokens");
    const std::int64_t num_blocks = (context + kBlockTokens - 1) / kBlockTokens;
    check(num_blocks <= batch.table_width, name_of("block_tables", s) + " is too short for the context");
    for (std::int64_t b = 0; b < num_blocks; ++b) {
      const std::int32_t block = batch.block_tables[s * batch.table_width + b];
      check(block >= 0 && block < cache.num_blocks(), name_of("block_tables", s) + " names a block that is not there");
    }
  }
  for (std::int64_t r = 0; r < batch.num_samples; ++r) {
    check(batch.sample_rows[r] >= 0 && batch.sample_rows[r] < batch.num_tokens, "sample row outside the batch");
  }
}

void Program::lay_out(const Batch& batch) {
  if (batch.num_tokens <= token_capacity_ && batch.num_samples <= sample_capacity_) return;
  token_capacity_ = std::max(token_capacity_, round_up(batch.num_tokens, kCapacityStep));
  sample_capacity_ = std::max(sample_capacity_, round_up(batch.num_samples, 8));
  std::size_t total = 0;
  for (BufferSpec& b : buffers_) {
    const std::int64_t rows = b.rows == Rows::kTokens ? token_capacity_ : sample_capacity_;
    b.offset = total;
    const std::size_t bytes =
        b.is_quantized ? quant_acts_bytes(rows, b.width) : static_cast<std::size_t>(rows * b.width) * sizeof(float);
    total += (bytes + 63) / 64 * 64;
  }
  arena_ = AlignedBuffer();
  arena_ = AlignedBuffer(total, /*huge_pages=*/true);
  step_.arena = arena_.data();
}

void Program::fill_positions(const Batch& batch) {
  const auto num_tokens = static_cast<std::size_t>(batch.num_tokens);
  const std::size_t num_pairs = rope_.inv_freq.size();
  step_.positions.resize(num_tokens);
  step_.seq_of.resize(num_tokens);
  step_.cos.resize(num_tokens * num_pairs);
  step_.sin.resize(num_tokens * num_pairs);
  for (std::int64_t s = 0; s < batch.num_seqs; ++s) {
    const std::int32_t begin = batch.cu_seqlens[s];
    const std::int32_t end = batch.cu_seqlens[s + 1];
    for (std::int32_t t = begin; t < end; ++t) {
      step_.positions[static_cast<std::size_t>(t)] = batch.context_lens[s] - (end - t);
      step_.seq_of[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(s);
    }
  }
  constexpr std::int64_t kTokensPerItem = 64;
  const auto fill = [&](std::int64_t item) {
    const auto from = static_cast<std::size_t>(item * kTokensPerItem);
    for (std::size_t t = from; t < std::min(from + kTokensPerItem, num_tokens); ++t) {
      for (std::size_t i = 0; i < num_pairs; ++i) {
        // In double: float32 positions times frequencies would lose the far positions.
        const double angle = static_cast<double>(step_.positions[t]) * rope_.inv_freq[i];
        step_.cos[t * num_pairs + i] = static_cast<float>(std::cos(angle) * rope_.magnitude);
        step_.sin[t * num_pairs + i] = static_cast<float>(std::sin(angle) * rope_.magnitude);
      }
    }
  };
  const std::int64_t num_items = (batch.num_tokens + kTokensPerItem - 1) / kTokensPerItem;
  if (num_items == 1) {
    fill(0);
  } else {
    pool_->for_each(num_items, fill);
  }
}

void Program::run(const Batch& batch, KvCache& cache) {
  check_batch(batch, cache);
  lay_out(batch);
  step_.batch = &batch;
  step_.cache = &cache;
  step_.buffers = &buffers_;
  fill_positions(batch);
  if (num_heads_ > 0) plan_attention(step_, num_heads_);
  prepare_stages();
  pool_->run([this](int thread) { run_stages(thread); });
}

void Program::prepare_stages() {
  std::fill(node_seconds_.begin(), node_seconds_.end(), 0.0);
  node_costs_.clear();
  for (Stage& stage : stages_) {
    for (std::size_t i = stage.begin; i < stage.end; ++i) {
      stage.num_items = nodes_[i]->prepare(step_);
      node_costs_.push_back(nodes_[i]->cost(step_));
    }
    stage.next.store(0, std::memory_order_relaxed);
    stage.num_done.store(0, std::memory_order_relaxed);
  }
}

void Program::run_stages(int thread) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point before = Clock::now();
  const auto charge = [&](std::size_t node) {
    if (thread != 0) return;
    const Clock::time_point after = Clock::now();
    node_seconds_[node] += std::chrono::duration<double>(after - before).count();
    before = after;
  };
  for (Stage& stage : stages_) {
    // A thread that comes late passes over what others have finished.
    if (stage.num_done.load(std::memory_order_acquire) == stage.num_items) continue;
    std::int64_t num_mine = 0;
    for (std::int64_t item = stage.next.fetch_add(1, std::memory_order_relaxed); item < stage.num_items;
         item = stage.next.fetch_add(1, std::memory_order_relaxed)) {
      for (std::size_t i = stage.begin; i < stage.end; ++i) {
        nodes_[i]->run(step_, item, thread);
        charge(i);
      }
      ++num_mine;
    }
    if (num_mine > 0) stage.num_done.fetch_add(num_mine, std::memory_order_acq_rel);
    spin_until([&] { return stage.num_done.load(std::memory_order_acquire) == stage.num_items; });
    charge(stage.end - 1);
  }
}

std::vector<NodeTiming> Program::timings() const {
  std::vector<NodeTiming> result;
  if (node_costs_.empty()) return result;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    result.push_back({nodes_[i]->kind, node_seconds_[i], node_costs_[i].bytes, node_costs_[i].ops});
  }
  return result;
}

}  // namespace pelton

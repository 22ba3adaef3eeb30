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
  const std::int64_t num_threads = pool_->num_threads();
  auto claim = claims_.begin();
  for (Stage& stage : stages_) {
    for (std::size_t i = stage.begin; i < stage.end; ++i) {
      stage.num_items = nodes_[i]->prepare(step_);
      node_costs_.push_back(nodes_[i]->cost(step_));
    }
    for (std::int64_t t = 0; t < num_threads; ++t, ++claim) {
      claim->next.store(stage.num_items * t / num_threads, std::memory_order_relaxed);
      claim->end = stage.num_items * (t + 1) / num_threads;
    }
    stage.num_arrived.store(0, std::memory_order_relaxed);
    stage.is_done.store(stage.num_items == 0, std::memory_order_relaxed);
  }
}

template <typename Charge>
void Program::run_item(const Stage& stage, std::int64_t item, int thread, const Charge& charge) {
  for (std::size_t i = stage.begin; i < stage.end; ++i) {
    nodes_[i]->run(step_, item, thread);
    charge(i);
  }
}

// Runs this thread's items of a stage, then what is left of the others'; returns how many.
template <typename Charge>
std::int64_t Program::run_claims(std::size_t index, int thread, const Charge& charge) {
  const int num_threads = pool_->num_threads();
  const std::size_t first = index * static_cast<std::size_t>(num_threads);
  std::int64_t num_mine = 0;
  for (int offset = 0; offset < num_threads; ++offset) {
    Claim& claim = claims_[first + static_cast<std::size_t>((thread + offset) % num_threads)];
    // Looking first keeps a finished run's line shared.
    while (claim.next.load(std::memory_order_relaxed) < claim.end) {
      const std::int64_t item = claim.next.fetch_add(1, std::memory_order_relaxed);
      if (item >= claim.end) break;
      run_item(stages_[index], item, thread, charge);
      ++num_mine;
    }
  }
  return num_mine;
}

// For the thread that did the last item of a stage. It goes on with the following stages as long as they have a single
// item (a decode's row-wise work): handing that to another thread costs more than the work.
template <typename Charge>
void Program::finish_stage(std::size_t index, int thread, const Charge& charge) {
  std::size_t last = index;
  while (last + 1 < stages_.size() && stages_[last + 1].num_items <= 1) {
    ++last;
    if (stages_[last].num_items == 1) run_item(stages_[last], 0, thread, charge);
  }
  // Last first: whoever sees a stage done finds those behind it done as well.
  for (std::size_t i = last + 1; i > index; --i) stages_[i - 1].is_done.store(true, std::memory_order_release);
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
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = stages_[s];
    // Done by others already, perhaps while this thread was kept from running.
    if (stage.is_done.load(std::memory_order_acquire)) continue;
    const std::int64_t num_mine = run_claims(s, thread, charge);
    if (num_mine > 0 &&
        stage.num_arrived.fetch_add(num_mine, std::memory_order_acq_rel) + num_mine == stage.num_items) {
      finish_stage(s, thread, charge);
    } else {
      spin_until([&] { return stage.is_done.load(std::memory_order_acquire); });
      charge(stage.end - 1);
    }
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

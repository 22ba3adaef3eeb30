// One step as the nodes see it: the batch, where buffers lie, and how attention is cut into work items.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned.h"
#include "base/thread_pool.h"
#include "isa/kernels.h"
#include "program/kv_cache.h"

namespace pelton {

// The tokens of one step, S sequences one after the other. Arrays belong to the caller.
struct Batch {
  std::int64_t num_tokens = 0;               // T
  std::int64_t num_seqs = 0;                 // S
  std::int64_t num_samples = 0;              // R
  std::int64_t table_width = 0;              // B
  const std::int32_t* token_ids = nullptr;   // [T]
  const std::int32_t* cu_seqlens = nullptr;  // [S+1] first token of each sequence, then T
  const std::int32_t* context_lens = nullptr;   // [S] tokens of the context, this step's included
  const std::int32_t* block_tables = nullptr;   // [S, B]
  const std::int32_t* sample_rows = nullptr;    // [R] tokens whose logits are wanted
};

// Which rows a buffer has: one per token of the step, or one per sampled row.
enum class Rows : std::uint8_t { kTokens, kSamples };

struct BufferSpec {
  std::int64_t width = 0;
  Rows rows = Rows::kTokens;
  bool is_quantized = false;
  std::size_t offset = 0;  // into the arena, set when the arena is laid out
};

// Query rows of one sequence and KV head; `span` < 0 walks all spans, else computes that one into the workspace.
struct AttendItem {
  std::int64_t seq;
  std::int64_t kv_head;
  std::int64_t token_begin;  // within the sequence's tokens of this step
  std::int64_t num_tokens;
  std::int64_t num_spans;
  std::int64_t span;
  std::int64_t state;        // first of num_spans span states in the workspace
  std::int64_t join;         // counter of finished spans
};

struct StepContext {
  const Batch* batch = nullptr;
  const KernelTable* kernels = nullptr;
  const KvCache* cache = nullptr;
  ThreadPool* pool = nullptr;
  const std::vector<BufferSpec>* buffers = nullptr;
  std::uint8_t* arena = nullptr;

  std::vector<std::int32_t> positions;  // [T]
  std::vector<std::int32_t> seq_of;     // [T]
  std::vector<float> cos, sin;          // [T, num_pairs]
  std::vector<AttendItem> attend_items;
  std::int64_t num_joins = 0;
  std::int64_t num_states = 0;
  std::int64_t max_item_rows = 0;
  std::vector<float>* scratch = nullptr;  // of attention, shared by all layers

  std::int64_t num_rows(Rows rows) const { return rows == Rows::kTokens ? batch->num_tokens : batch->num_samples; }
  float* f32(int buffer) const {
    return reinterpret_cast<float*>(arena + (*buffers)[static_cast<std::size_t>(buffer)].offset);
  }
  QuantActs quant(int buffer) const {
    const BufferSpec& spec = (*buffers)[static_cast<std::size_t>(buffer)];
    return place_quant_acts(arena + spec.offset, num_rows(spec.rows), spec.width);
  }
};

}  // namespace pelton

// attend: softmax(q k^T * scale) v over the paged KV cache, causal, grouped-query aware.
//
// The context is walked in spans of kSpanTokens positions counted from 0; each span has its own maximum and sum, and
// spans are merged in index order, so neither chunking nor threads change a bit.
#pragma once

#include <cstdint>

namespace pelton {

inline constexpr std::int64_t kSpanTokens = 256;
inline constexpr std::int64_t kBlockTokens = 16;

enum class KvDtype : std::uint8_t { kF16, kF32 };

// Where one layer's K and V live. Block b: keys [kv_head, head_dim, 16] (16 tokens side by side), then values
// [kv_head, 16, value_dim] with value_dim = head_dim rounded up to 16.
struct KvLayer {
  std::uint8_t* base = nullptr;
  std::int64_t block_bytes = 0;   // bytes from one block to the next
  std::int64_t value_offset = 0;  // bytes from a block's keys to its values
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;
  KvDtype dtype = KvDtype::kF16;
};

struct AttendParams {
  std::int64_t num_heads = 0;
  float scale = 1.0F;
  float softcap = 0.0F;           // 0: none; else scores become softcap * tanh(score / softcap)
  std::int64_t window = 0;        // 0: full; else key j is seen from position i iff 0 <= i - j < window
};

// One (maximum, sum, weighted values) per query row; a span's result, or several merged.
struct SpanState {
  float* max;     // [rows]
  float* sum;     // [rows]
  float* values;  // [rows, value_dim]
};

// A block of query rows of one KV head: `num_tokens` consecutive tokens from `position` on, each with `group` heads.
// Row r is token r / group, head r % group.
struct QueryBlock {
  const float* q;            // first token's first head of the group
  std::int64_t q_stride;     // floats between tokens
  std::int64_t num_tokens;
  std::int64_t group;
  std::int64_t position;     // of the first token
  std::int64_t kv_head;
  const std::int32_t* block_table;
};

// Scratch floats that attend_span needs for `rows` query rows.
inline constexpr std::int64_t attend_scratch_floats(std::int64_t rows, std::int64_t head_dim) {
  return rows * head_dim + rows * kSpanTokens;
}

// Computes span `span` for every row into `out`; a row that sees nothing of the span gets sum 0.
using AttendSpanKernel = void (*)(const KvLayer&, const AttendParams&, const QueryBlock&, std::int64_t span,
                                  float* scratch, const SpanState& out);

// Merges `next` (the following span) into `state`, row by row.
using MergeSpansKernel = void (*)(std::int64_t rows, std::int64_t value_dim, const SpanState& state,
                                  const SpanState& next);

// out[row] = values / sum, for `num_tokens` x `group` rows; `out_stride` floats between tokens.
using FinishAttendKernel = void (*)(std::int64_t num_tokens, std::int64_t group, std::int64_t head_dim,
                                    std::int64_t value_dim, const SpanState& state, float* out,
                                    std::int64_t out_stride);

// Writes one token's k and v [num_kv_heads, head_dim] into slot `slot` of block `block`.
using StoreKvKernel = void (*)(const KvLayer&, std::int64_t block, std::int64_t slot, const float* k, const float* v);

}  // namespace pelton

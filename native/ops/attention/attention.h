// attend: softmax(q k^T * scale) v over the paged KV cache, causal, grouped-query aware.
//
// The context is walked in spans of kSpanTokens positions counted from 0; each span has its own maximum and sum, and
// spans are merged in index order, so neither chunking nor threads change a bit. Within a span, for one query row:
//   score[j]  = sum over d, in order, of q[d] * key[d, j], by fused multiply-add from 0 on the stored keys; int8 keys
//               are codes, and the sum is then multiplied by scale[j]; int4: sum * scale[j] + ((sum of q) * minimum[j] +
//               q . center), fused, with q . center = the center's scale * the sum of q[d] * code[d]; that sum and
//               the sum of q are taken on 16 lanes (lane = d mod 16, d in order), then by halves
//   weight[j] = e^(score[j] - maximum); the span's sum is taken on 16 lanes (lane = j mod 16, j in order), then by halves
//   values[d] = sum over j, in order, of weight[j] * value[j, d], by fused multiply-add from 0; int8 and int4 values are
//               codes and weight[j] * scale[j] stands for the weight; int4 starts from the sum of weight[j] *
//               minimum[j], taken as the span's sum is, fused
// Tokens that a row does not see weigh 0, so blocks and spans that no row of a work item sees are left out.
// A sink, a logit without a value, joins the denominator after the last merge.
#pragma once

#include <cstdint>

#include "ops/attention/kv_layout.h"

namespace pelton {

inline constexpr std::int64_t kSpanTokens = 256;
inline constexpr std::int64_t kSpanBlocks = kSpanTokens / kBlockTokens;

struct AttendParams {
  std::int64_t num_heads = 0;
  float scale = 1.0F;
  float softcap = 0.0F;     // 0: none; else scores become softcap * tanh(score / softcap)
  std::int64_t window = 0;  // 0: full; else key j is seen from position i iff 0 <= i - j < window

  // The first position that is seen from `position`.
  std::int64_t first_seen(std::int64_t position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
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
  const float* sinks;        // [group] logits of the group's heads, or null
};

// What a query row's scores get beside the product with the keys' codes.
struct RowOffsets {
  float q_sum;
  float centers[kSpanBlocks];  // q . center of each block
};

// Queries are copied in runs of kQueryDims dimensions, each row kQueryStride floats after the one before: a constant,
// so that a kernel reaches all its rows from one pointer, and no power of two, which would crowd few cache sets.
inline constexpr std::int64_t kQueryDims = 256;
inline constexpr std::int64_t kQueryStride = kQueryDims + 16;

inline constexpr std::int64_t query_floats(std::int64_t rows, const KvLayer& kv) {
  return (kv.key_dim + kQueryDims - 1) / kQueryDims * rows * kQueryStride;
}

// Scratch floats that attend_span needs for `rows` query rows: queries, weights, starts of values, offsets.
inline constexpr std::int64_t attend_scratch_floats(std::int64_t rows, const KvLayer& kv) {
  return query_floats(rows, kv) + rows * (kSpanTokens + 1 + static_cast<std::int64_t>(sizeof(RowOffsets) / sizeof(float)));
}

// Computes span `span` for every row into `out`; a row that sees nothing of the span gets sum 0. The first row must see
// something of it.
using AttendSpanKernel = void (*)(const KvLayer&, const AttendParams&, const QueryBlock&, std::int64_t span,
                                  float* scratch, const SpanState& out);

// Merges `next` (the following span) into `state`, row by row.
using MergeSpansKernel = void (*)(std::int64_t rows, std::int64_t value_dim, const SpanState& state,
                                  const SpanState& next);

// out[row] = values / (sum + the sink's weight) for all rows of the query block; `out` is laid out as its q.
using FinishAttendKernel = void (*)(const KvLayer&, const QueryBlock&, const SpanState& state, float* out);

// One token's place in the cache.
struct KvSlot {
  std::int64_t block;
  std::int64_t slot;
  std::int64_t block_before;  // the block of the 16 tokens before, -1 for the first block
};

// Writes one token's k and v [num_kv_heads, head_dim], of the heads from `begin` to `end`. Where keys have a center, a
// sequence's tokens must be stored in order.
using StoreKvKernel = void (*)(const KvLayer&, const KvSlot& slot, std::int64_t begin, std::int64_t end, const float* k,
                               const float* v);

}  // namespace pelton

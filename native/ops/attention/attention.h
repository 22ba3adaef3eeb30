// attend: softmax(q k^T * scale) v over the paged KV cache, causal, grouped-query aware.
//
// The context is walked in spans of kSpanTokens positions counted from 0; each span has its own maximum and sum, and
// spans are merged in index order, so neither chunking nor threads change a bit. Within a span, for one query row:
//   score[j]  = sum over d, in order, of q[d] * key[d, j], by fused multiply-add from 0 on the stored keys
//   weight[j] = e^(score[j] - maximum); the span's sum is taken on 16 lanes (lane = j mod 16, j in order), then by
//               halves
//   values[d] = sum over j, in order, of weight[j] * value[j, d], by fused multiply-add from 0
// Coded keys and values (int8, int4) are multiplied as integers, which needs no order:
//   q[d] = s * round(q[d] * (1 / s)) with s = max |q| / 127, after the rotation
//   score[j]  = ((sum over d of q's code * key's code) * scale[j] + q . center) * s, fused, where q . center = center's
//               scale * (sum over d of q's code * center's code), and nothing is added for int8
//   t[j]      = weight[j] * scale[j] * (16256 / largest |weight * scale| of the span), 0 where that is 0;
//               high[j] = round(t[j] / 128), low[j] = round(t[j] - 128 * high[j]), which fit in signed bytes
//   values[d] = (128 * (sum over j of high[j] * code[j, d]) + sum over j of low[j] * code[j, d]), fused, * (largest /
//               16256)
// with codes taken without zero_code. A weight so has 14 bits below the largest of its span.
// Tokens that a row does not see weigh 0, so blocks and spans that no row of a work item sees are left out.
// A sink, a logit without a value, joins the denominator after the last merge.
#pragma once

#include <cstdint>

#include "ops/attention/kv_layout.h"

namespace pelton {

inline constexpr std::int64_t kMaxHeadDim = 4096;
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

  const float* row(std::int64_t r, std::int64_t head_dim) const {
    return q + r / group * q_stride + r % group * head_dim;
  }
};

// What a query row over coded keys and values has beside its codes.
struct CodedRow {
  float query_scale;
  std::int32_t score_start;    // of the sums of products: takes the keys' zero code off
  float value_scale;           // of the span's sums of weighted codes
  std::int32_t high_start;     // as score_start, for the high and the low parts of the span's weights
  std::int32_t low_start;
  std::int32_t query_sum;
  float centers[kSpanBlocks];  // q . center of each of the span's blocks, without query_scale
};

// Queries are copied in runs of kQueryDims dimensions, each row kQueryStride elements after the one before: a constant,
// so that a kernel reaches all its rows from one pointer, and no power of two, which would crowd few cache sets.
inline constexpr std::int64_t kQueryDims = 256;
inline constexpr std::int64_t kQueryStride = kQueryDims + 16;
// Bytes of one row's weight codes: those of the high parts, those of the low parts, a gap for the same reason.
inline constexpr std::int64_t kWeightStride = 2 * kSpanTokens + 64;

// Where a work item's `rows` query rows have what in its scratch, in floats from its start.
struct AttendScratch {
  std::int64_t scores;   // behind the queries: floats, or codes in bytes
  std::int64_t rows;     // CodedRow
  std::int64_t weights;  // weight codes
  std::int64_t centers;  // the span's centers as one tile of 16 rows
  std::int64_t end;
};

inline AttendScratch plan_scratch(std::int64_t rows, const KvLayer& kv) {
  const std::int64_t query_elements = (kv.key_dim + kQueryDims - 1) / kQueryDims * rows * kQueryStride;
  if (!is_coded(kv.dtype)) {
    const std::int64_t end = query_elements + rows * kSpanTokens;
    return {query_elements, end, end, end, end};
  }
  // Whole lines of the cache.
  const auto after = [](std::int64_t begin, std::int64_t num_floats) { return begin + (num_floats + 15) / 16 * 16; };
  AttendScratch at;
  at.scores = after(0, query_elements / 4);
  at.rows = after(at.scores, rows * kSpanTokens);
  at.weights = after(at.rows, rows * static_cast<std::int64_t>(sizeof(CodedRow) / 4));
  at.centers = after(at.weights, rows * kWeightStride / 4);
  at.end = at.centers + (has_center(kv.dtype) ? kv.key_dim * kSpanBlocks / 4 : 0);
  return at;
}

// Floats of scratch for `rows` query rows.
inline std::int64_t attend_scratch_floats(std::int64_t rows, const KvLayer& kv) { return plan_scratch(rows, kv).end; }

// Copies a work item's queries into its scratch, as attend_span takes them from there.
using PrepareQueriesKernel = void (*)(const KvLayer&, const AttendParams&, const QueryBlock&, float* scratch);

// Computes span `span` for every row into `out`; a row that sees nothing of the span gets sum 0. The first row must see
// something of it.
using AttendSpanKernel = void (*)(const KvLayer&, const AttendParams&, const QueryBlock&, std::int64_t span,
                                  float* scratch, const SpanState& out);

// Merges `next` (the following span) into `state`, row by row.
using MergeSpansKernel = void (*)(std::int64_t rows, std::int64_t value_dim, const SpanState& state,
                                  const SpanState& next);

// out[row] = values / (sum + the sink's weight) for all rows of the query block; `out` is laid out as its q. Rotated
// values are turned back, in `state`.
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

// Attention of a span over keys and values that are not coded, compiled once per ISA inside its namespace. Contract:
// ops/attention/attention.h.

// scores[r, j] = q[r] . k[j] for kRows rows and kBlocks blocks of 16 tokens, whose keys are `keys`.
template <KvDtype kDtype, int kRows, int kBlocks>
inline void score_blocks(const KvLayer& kv, const std::uint8_t* const* keys, const Queries<float>& queries,
                         float* scores) {
  static_assert(kBlocks <= kTilesAhead);
  constexpr std::int64_t kLineDims = key_line_dims(kDtype);
  F32x16 acc[kRows][kBlocks];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) acc[r][b] = zero16();
  }
  for (std::int64_t d = 0; d < kv.key_dim; d += kLineDims) {
    const std::int64_t at = d / kLineDims * 64;
    const float* q = queries.at(d);
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) {
      // Blocks lie apart, so the hardware's own prefetcher starts anew at each. Into the second cache: prefetches
      // into the first wait for its few line fill buffers.
      __builtin_prefetch(keys[b + kBlocks] + at, 0, 2);
    }
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < kLineDims; ++i) {
      F32x16 k[kBlocks];
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) k[b] = load16_kv<kDtype>(keys[b] + at + kv_bytes(kDtype, i * kBlockTokens));
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const F32x16 x = set16(q[r * kQueryStride + i]);
#pragma GCC unroll 16
        for (int b = 0; b < kBlocks; ++b) acc[r][b] = fma16(k[b], x, acc[r][b]);
      }
    }
  }
#pragma GCC unroll 16
  for (int b = 0; b < kBlocks; ++b) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) store16(scores + r * kSpanTokens + b * kBlockTokens, acc[r][b]);
  }
}

// Scores of kRows rows over the span, kBlocks blocks at a time so that enough independent sums are under way.
template <KvDtype kDtype, int kRows, int kBlocks>
inline void score_rows(const SpanView& span, const Queries<float>& queries, float* scores) {
  std::int64_t b = 0;
  for (; b + kBlocks <= span.num_blocks; b += kBlocks) {
    score_blocks<kDtype, kRows, kBlocks>(span.kv, span.keys + b, queries, scores + b * kBlockTokens);
  }
  for (; b < span.num_blocks; ++b) {
    score_blocks<kDtype, kRows, 1>(span.kv, span.keys + b, queries, scores + b * kBlockTokens);
  }
}

template <KvDtype kDtype>
inline void score_all(const SpanView& span, std::int64_t rows, const Queries<float>& queries, float* scores) {
  std::int64_t r = 0;
  const auto pass = [&](auto num_rows, auto num_at_once) {
    constexpr int kRows = decltype(num_rows)::value;
    for (; r + kRows <= rows; r += kRows) {
      score_rows<kDtype, kRows, decltype(num_at_once)::value>(span, queries.from_row(r), scores + r * kSpanTokens);
    }
  };
  pass(std::integral_constant<int, kScoreRows>{}, std::integral_constant<int, 1>{});
  pass(std::integral_constant<int, 4>{}, std::integral_constant<int, kScoreSums / 4>{});
  pass(std::integral_constant<int, 3>{}, std::integral_constant<int, kScoreSums / 3>{});
  pass(std::integral_constant<int, 1>{}, std::integral_constant<int, kScoreSums / 2>{});
}

// values[r] = sum over the span's tokens j, in order, of weights[r, j] * v[j], for kRows rows and kVecs x 16
// dims.
template <KvDtype kDtype, int kRows, int kVecs>
inline void value_rows(const SpanView& span, std::int64_t dim, const float* weights, float* values) {
  const std::int64_t value_dim = span.kv.value_dim;
  const std::int64_t token_bytes = kv_bytes(kDtype, value_dim);
  constexpr std::int64_t kReadBytes = kv_bytes(kDtype, kVecs * 16);
  constexpr std::int64_t kTokensPerLine = kReadBytes < 64 ? 64 / kReadBytes : 1;
  F32x16 acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < kVecs; ++c) acc[r][c] = zero16();
  }
  for (std::int64_t b = 0; b < span.num_blocks; ++b) {
    const std::uint8_t* token = span.values[b];
    const std::uint8_t* ahead = span.values[b + kValueTilesAhead] + kv_bytes(kDtype, dim);
    const std::int64_t n = std::min(kBlockTokens, span.num_tokens - b * kBlockTokens);
    const float* weight_at = weights + b * kBlockTokens;
    for (std::int64_t j = 0; j < n; ++j, token += token_bytes, ahead += token_bytes) {
      if (j % kTokensPerLine == 0) {
#pragma GCC unroll 16
        for (std::int64_t i = 0; i < kReadBytes; i += 64) __builtin_prefetch(ahead + i, 0, 2);
      }
      F32x16 x[kVecs];
#pragma GCC unroll 16
      for (int c = 0; c < kVecs; ++c) x[c] = load16_kv<kDtype>(token + kv_bytes(kDtype, dim + c * 16));
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const F32x16 weight = set16(weight_at[r * kSpanTokens + j]);
#pragma GCC unroll 16
        for (int c = 0; c < kVecs; ++c) acc[r][c] = fma16(weight, x[c], acc[r][c]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < kVecs; ++c) store16(values + r * value_dim + dim + c * 16, acc[r][c]);
  }
}

template <KvDtype kDtype, int kVecs>
inline void value_dims(const SpanView& span, std::int64_t rows, std::int64_t dim, const float* weights,
                       float* values) {
  std::int64_t r = 0;
  const auto pass = [&](auto num_rows) {
    constexpr int kRows = decltype(num_rows)::value;
    for (; r + kRows <= rows; r += kRows) {
      value_rows<kDtype, kRows, kVecs>(span, dim, weights + r * kSpanTokens, values + r * span.kv.value_dim);
    }
  };
  pass(std::integral_constant<int, kValueRows>{});
  if constexpr (kValueRows > 4) pass(std::integral_constant<int, 4>{});
  pass(std::integral_constant<int, 3>{});
  pass(std::integral_constant<int, 1>{});
}

inline void prepare_floats(const KvLayer& kv, const AttendParams& params, const QueryBlock& query, float* scratch) {
  const std::int64_t rows = query.num_tokens * query.group;
  const Queries<float> queries{scratch, rows * kQueryStride};
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* head = query.row(r, kv.head_dim);
    const Queries<float> row = queries.from_row(r);
    for (std::int64_t d = 0; d < kv.head_dim; ++d) *row.at(d) = head[d] * params.scale;
    for (std::int64_t d = kv.head_dim; d < kv.key_dim; ++d) *row.at(d) = 0.0F;
  }
}

template <KvDtype kDtype>
inline void attend_floats(const SpanView& span, const AttendParams& params, const QueryBlock& query, float* scratch,
                          const SpanState& out) {
  const std::int64_t rows = query.num_tokens * query.group;
  float* scores = scratch + plan_scratch(rows, span.kv).scores;
  score_all<kDtype>(span, rows, {scratch, rows * kQueryStride}, scores);
  for (std::int64_t r = 0; r < rows; ++r) weigh_row(span, params, query, r, scores + r * kSpanTokens, out);
  std::int64_t dim = 0;
  for (; dim + kValueVecs * 16 <= span.kv.value_dim; dim += kValueVecs * 16) {
    value_dims<kDtype, kValueVecs>(span, rows, dim, scores, out.values);
  }
  for (; dim < span.kv.value_dim; dim += 16) value_dims<kDtype, 1>(span, rows, dim, scores, out.values);
}

// Bodies of attention, compiled once per ISA inside its namespace. Contract: ops/attention/attention.h.

// Lists of a span's blocks go on with this many blocks of what is read next, so that they can be brought nearer.
inline constexpr int kTilesAhead = 6;

// One span of one head as a work item sees it: where its blocks lie, from the first that any row sees.
struct SpanView {
  const KvLayer& kv;
  std::int64_t first;  // position of the first token
  std::int64_t num_tokens;
  std::int64_t num_blocks;
  std::int64_t to_centers;  // from a block's keys
  const std::uint8_t* keys[kSpanBlocks + kTilesAhead];    // then the values
  const std::uint8_t* values[kSpanBlocks + kTilesAhead];  // then the next span's keys
};

inline SpanView view_span(const KvLayer& kv, const AttendParams& params, const QueryBlock& query, std::int64_t span) {
  const std::int64_t last = query.position + query.num_tokens - 1;
  const std::int64_t seen = params.first_seen(query.position) / kBlockTokens * kBlockTokens;
  const std::int64_t first = std::max(span * kSpanTokens, seen);
  const std::int64_t num_tokens = std::min((span + 1) * kSpanTokens, last + 1) - first;
  const std::int64_t num_blocks = (num_tokens + kBlockTokens - 1) / kBlockTokens;
  const std::int64_t to_centers = kv.center_offset + query.kv_head * (kv.center_head_bytes - kv.key_head_bytes);
  SpanView view{kv, first, num_tokens, num_blocks, to_centers, {}, {}};
  const auto keys_of = [&](std::int64_t b) {
    // Past the context's end there is nothing to bring nearer.
    const std::int64_t block = std::min(first / kBlockTokens + b, last / kBlockTokens);
    return kv.base + query.block_table[block] * kv.block_bytes + query.kv_head * kv.key_head_bytes;
  };
  const std::int64_t to_values = kv.value_offset + query.kv_head * (kv.value_head_bytes - kv.key_head_bytes);
  for (std::int64_t b = 0; b < num_blocks + kTilesAhead; ++b) {
    const std::uint8_t* keys = keys_of(b);
    if (b < num_blocks) {
      view.keys[b] = keys;
      view.values[b] = keys + to_values;
    } else {
      view.values[b] = keys;
    }
  }
  for (std::int64_t i = 0; i < kTilesAhead; ++i) view.keys[num_blocks + i] = view.values[i];
  return view;
}

// The copied queries of a work item, from one row on.
struct Queries {
  float* q;
  std::int64_t run_floats;  // from one run of kQueryDims dimensions to the next

  // Dimension d of the first row.
  inline float* at(std::int64_t d) const { return q + d / kQueryDims * run_floats + d % kQueryDims; }
  inline Queries from_row(std::int64_t r) const { return {q + r * kQueryStride, run_floats}; }
};

// scores[r, j] = q[r] . k[j] for kRows rows and kBlocks blocks of 16 tokens, whose keys are `keys` and whose first is
// block `first_block` of the span.
template <KvDtype kDtype, int kRows, int kBlocks>
inline void score_blocks(const KvLayer& kv, const std::uint8_t* const* keys, std::int64_t first_block,
                         const Queries& queries, const RowOffsets* offsets, float* scores) {
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
    KeyLine<kDtype> lines[kBlocks];
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) {
      // Blocks lie apart, so the hardware's own prefetcher starts anew at each. Into the second cache: prefetches
      // into the first wait for its few line fill buffers.
      __builtin_prefetch(keys[b + kBlocks] + at, 0, 2);
      lines[b].open(keys[b] + at);
    }
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < kLineDims; ++i) {
      F32x16 k[kBlocks];
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) k[b] = lines[b].next();
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
    if constexpr (has_scale(kDtype)) {
      const std::uint8_t* scales = scales_of(keys[b], kv.key_head_bytes, kDtype);
      const F32x16 scale = load_scales(scales);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        if constexpr (has_minimum(kDtype)) {
          const F32x16 center = set16(offsets[r].centers[first_block + b]);
          acc[r][b] = fma16(acc[r][b], scale, fma16(set16(offsets[r].q_sum), load_minima(scales), center));
        } else {
          acc[r][b] = mul16(acc[r][b], scale);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) store16(scores + r * kSpanTokens + b * kBlockTokens, acc[r][b]);
  }
}

// Scores of kRows rows over the span, kBlocks blocks at a time so that enough independent sums are under way.
template <KvDtype kDtype, int kRows, int kBlocks>
inline void score_rows(const SpanView& span, const Queries& queries, const RowOffsets* offsets, float* scores) {
  std::int64_t b = 0;
  for (; b + kBlocks <= span.num_blocks; b += kBlocks) {
    score_blocks<kDtype, kRows, kBlocks>(span.kv, span.keys + b, b, queries, offsets, scores + b * kBlockTokens);
  }
  for (; b < span.num_blocks; ++b) {
    score_blocks<kDtype, kRows, 1>(span.kv, span.keys + b, b, queries, offsets, scores + b * kBlockTokens);
  }
}

template <KvDtype kDtype>
inline void score_all(const SpanView& span, std::int64_t rows, const Queries& queries, const RowOffsets* offsets,
                      float* scores) {
  std::int64_t r = 0;
  const auto pass = [&](auto num_rows, auto num_at_once) {
    constexpr int kRows = decltype(num_rows)::value;
    for (; r + kRows <= rows; r += kRows) {
      score_rows<kDtype, kRows, decltype(num_at_once)::value>(span, queries.from_row(r), offsets + r,
                                                              scores + r * kSpanTokens);
    }
  };
  pass(std::integral_constant<int, kScoreRows>{}, std::integral_constant<int, 1>{});
  pass(std::integral_constant<int, 4>{}, std::integral_constant<int, kScoreSums / 4>{});
  pass(std::integral_constant<int, 3>{}, std::integral_constant<int, kScoreSums / 3>{});
  pass(std::integral_constant<int, 1>{}, std::integral_constant<int, kScoreSums / 2>{});
}

// softcap * tanh(s / softcap), by tanh(y) = 1 - 2 / (e^(2y) + 1).
inline V cap_scores(V s, float softcap) {
  const V y = div(s, set1(softcap));
  const V t = sub(set1(1.0F), div(set1(2.0F), add(exp(add(y, y)), set1(1.0F))));
  return mul(t, set1(softcap));
}

// Turns one row's scores into weights e^(score - max); tokens outside [begin, end) of the span weigh 0.
inline void softmax_row(const AttendParams& params, std::int64_t begin, std::int64_t end, std::int64_t num_blocks,
                        float* scores, float* max_out, float* sum_out) {
  const V low = set1(static_cast<float>(begin));
  const V high = set1(static_cast<float>(end));
  const V masked = set1(-std::numeric_limits<float>::infinity());
  F32x16 highest = set16(-std::numeric_limits<float>::infinity());
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const bool is_seen_whole = begin <= b * kBlockTokens && (b + 1) * kBlockTokens <= end;
    for (int i = 0; i < kParts; ++i) {
      float* p = scores + b * kBlockTokens + i * kLanes;
      V s = load(p);
      if (params.softcap != 0.0F) s = cap_scores(s, params.softcap);
      if (!is_seen_whole) {
        const V at = add(iota(), set1(static_cast<float>(b * kBlockTokens + i * kLanes)));
        s = select_lt(at, low, masked, select_lt(at, high, s, masked));
      }
      store(p, s);
      highest.part[i] = max(highest.part[i], s);
    }
  }
  const float top = max_lanes(highest);
  F32x16 sum = zero16();
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    for (int i = 0; i < kParts; ++i) {
      float* p = scores + b * kBlockTokens + i * kLanes;
      const V weight = exp(sub(load(p), set1(top)));
      store(p, weight);
      sum.part[i] = add(sum.part[i], weight);
    }
  }
  *max_out = top;
  *sum_out = sum_lanes(sum);
}

// Multiplies a row's weights by the tokens' value scales; returns the sum of weight * minimum.
template <KvDtype kDtype>
inline float fold_value_scales(const SpanView& span, float* weights) {
  F32x16 sum = zero16();
  for (std::int64_t b = 0; b < span.num_blocks; ++b) {
    const std::uint8_t* scales = scales_of(span.values[b], span.kv.value_head_bytes, kDtype);
    const F32x16 weight = load16(weights + b * kBlockTokens);
    if constexpr (has_minimum(kDtype)) sum = fma16(weight, load_minima(scales), sum);
    store16(weights + b * kBlockTokens, mul16(weight, load_scales(scales)));
  }
  return has_minimum(kDtype) ? sum_lanes(sum) : 0.0F;
}

// values[r] = starts[r] + sum over the span's tokens j, in order, of weights[r, j] * v[j], for kRows rows and
// kVecs x 16 dims.
template <KvDtype kDtype, int kRows, int kVecs>
inline void value_rows(const SpanView& span, std::int64_t dim, const float* weights, const float* starts,
                       float* values) {
  const std::int64_t value_dim = span.kv.value_dim;
  const std::int64_t token_bytes = kv_bytes(kDtype, value_dim);
  constexpr std::int64_t kReadBytes = kv_bytes(kDtype, kVecs * 16);
  constexpr std::int64_t kTokensPerLine = kReadBytes < 64 ? 64 / kReadBytes : 1;
  F32x16 acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < kVecs; ++c) acc[r][c] = set16(starts[r]);
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
      load_values<kDtype, kVecs>(token, dim, x);
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
                       const float* starts, float* values) {
  std::int64_t r = 0;
  const auto pass = [&](auto num_rows) {
    constexpr int kRows = decltype(num_rows)::value;
    for (; r + kRows <= rows; r += kRows) {
      value_rows<kDtype, kRows, kVecs>(span, dim, weights + r * kSpanTokens, starts + r,
                                       values + r * span.kv.value_dim);
    }
  };
  pass(std::integral_constant<int, kValueRows>{});
  if constexpr (kValueRows > 4) pass(std::integral_constant<int, 4>{});
  pass(std::integral_constant<int, 3>{});
  pass(std::integral_constant<int, 1>{});
}

// The rows' queries times the scale, padded to key_dim and rotated as the keys are.
inline void copy_queries(const KvLayer& kv, const AttendParams& params, const QueryBlock& query,
                         const Queries& queries) {
  for (std::int64_t r = 0; r < query.num_tokens * query.group; ++r) {
    const float* head = query.q + r / query.group * query.q_stride + r % query.group * kv.head_dim;
    for (std::int64_t begin = 0; begin < kv.key_dim; begin += kQueryDims) {
      const std::int64_t num_dims = std::min(kQueryDims, kv.key_dim - begin);
      const std::int64_t num_copied = std::min(num_dims, kv.head_dim - begin);
      float* row = queries.from_row(r).at(begin);
      for (std::int64_t d = 0; d < num_copied; ++d) row[d] = head[begin + d] * params.scale;
      std::fill(row + num_copied, row + num_dims, 0.0F);
      if (has_center(kv.dtype)) rotate_runs(row, num_dims, kv.rotation_dims());
    }
  }
}

// The sum of each row's query, and its products with the centers of the span's blocks.
inline void find_offsets(const SpanView& span, std::int64_t rows, const Queries& queries, RowOffsets* offsets) {
  const std::int64_t key_dim = span.kv.key_dim;
  for (std::int64_t r = 0; r < rows; ++r) {
    F32x16 sum = zero16();
    for (std::int64_t d = 0; d < key_dim; d += 16) sum = add16(sum, load16(queries.from_row(r).at(d)));
    offsets[r].q_sum = sum_lanes(sum);
  }
  for (std::int64_t b = 0; b < span.num_blocks; ++b) {
    const std::uint8_t* center = span.keys[b] + span.to_centers;
    float scale;
    std::memcpy(&scale, center + key_dim, 4);
    for (std::int64_t r = 0; r < rows; ++r) {
      F32x16 acc = zero16();
      for (std::int64_t d = 0; d < key_dim; d += 16) {
        acc = fma16(load16_kv<KvDtype::kI8>(center + d), load16(queries.from_row(r).at(d)), acc);
      }
      offsets[r].centers[b] = sum_lanes(acc) * scale;
    }
  }
}

template <KvDtype kDtype>
inline void attend_span_of(const KvLayer& kv, const AttendParams& params, const QueryBlock& query, std::int64_t index,
                           float* scratch, const SpanState& out) {
  const SpanView span = view_span(kv, params, query, index);
  const std::int64_t rows = query.num_tokens * query.group;
  const Queries queries{scratch, rows * kQueryStride};
  float* scores = scratch + query_floats(rows, kv);
  float* starts = scores + rows * kSpanTokens;
  auto* offsets = reinterpret_cast<RowOffsets*>(starts + rows);
  copy_queries(kv, params, query, queries);
  if constexpr (has_center(kDtype)) find_offsets(span, rows, queries, offsets);
  score_all<kDtype>(span, rows, queries, offsets, scores);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = scores + r * kSpanTokens;
    const std::int64_t position = query.position + r / query.group;
    const std::int64_t end = std::min(span.num_tokens, position + 1 - span.first);
    const std::int64_t begin = std::max<std::int64_t>(0, params.first_seen(position) - span.first);
    starts[r] = 0.0F;
    if (begin >= end) {
      std::fill_n(row, span.num_blocks * kBlockTokens, 0.0F);
      out.max[r] = 0.0F;
      out.sum[r] = 0.0F;
      continue;
    }
    softmax_row(params, begin, end, span.num_blocks, row, out.max + r, out.sum + r);
    if constexpr (has_scale(kDtype)) starts[r] = fold_value_scales<kDtype>(span, row);
  }
  std::int64_t dim = 0;
  for (; dim + kValueVecs * 16 <= kv.value_dim; dim += kValueVecs * 16) {
    value_dims<kDtype, kValueVecs>(span, rows, dim, scores, starts, out.values);
  }
  for (; dim < kv.value_dim; dim += 16) value_dims<kDtype, 1>(span, rows, dim, scores, starts, out.values);
}

inline void attend_span(const KvLayer& kv, const AttendParams& params, const QueryBlock& query, std::int64_t span,
                        float* scratch, const SpanState& out) {
  for_kv_dtype(kv.dtype, [&](auto dtype) {
    attend_span_of<decltype(dtype)::value>(kv, params, query, span, scratch, out);
  });
}

inline void merge_spans(std::int64_t rows, std::int64_t value_dim, const SpanState& state, const SpanState& next) {
  for (std::int64_t r = 0; r < rows; ++r) {
    if (next.sum[r] == 0.0F) continue;
    float* mine = state.values + r * value_dim;
    const float* theirs = next.values + r * value_dim;
    if (state.sum[r] == 0.0F) {
      std::copy_n(theirs, value_dim, mine);
      state.max[r] = next.max[r];
      state.sum[r] = next.sum[r];
      continue;
    }
    const float top = std::max(state.max[r], next.max[r]);
    const V a = exp(set1(state.max[r] - top));
    const V b = exp(set1(next.max[r] - top));
    for (std::int64_t d = 0; d < value_dim; d += kLanes) store(mine + d, fma(load(mine + d), a, mul(load(theirs + d), b)));
    float sums[kLanes];
    store(sums, fma(set1(state.sum[r]), a, mul(set1(next.sum[r]), b)));
    state.sum[r] = sums[0];
    state.max[r] = top;
  }
}

inline void finish_attend(const KvLayer& kv, const QueryBlock& query, const SpanState& state, float* out) {
  for (std::int64_t r = 0; r < query.num_tokens * query.group; ++r) {
    float factor = 1.0F;
    float sum = state.sum[r];
    if (query.sinks != nullptr) {
      const float sink = query.sinks[r % query.group];
      const float top = std::max(state.max[r], sink);
      float weights[kLanes];
      store(weights, exp(set1(state.max[r] - top)));
      factor = weights[0];
      store(weights, fma(set1(sum), set1(factor), exp(set1(sink - top))));
      sum = weights[0];
    }
    const float inverse = factor / sum;
    float* p = out + r / query.group * query.q_stride + r % query.group * kv.head_dim;
    for (std::int64_t d = 0; d < kv.head_dim; ++d) p[d] = state.values[r * kv.value_dim + d] * inverse;
  }
}

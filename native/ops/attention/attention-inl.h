// Bodies of attention, compiled once per ISA inside its namespace. Contract: ops/attention/attention.h.

template <KvDtype kDtype>
struct KvElement {
  using Type = std::conditional_t<kDtype == KvDtype::kF16, std::uint16_t, float>;
  static inline F32x16 load16_kv(const Type* p) {
    return map16([p](int i) {
      if constexpr (kDtype == KvDtype::kF16) {
        return load_f16(p + i * kLanes);
      } else {
        return load(p + i * kLanes);
      }
    });
  }
};

inline const std::uint8_t* kv_block(const KvLayer& kv, const std::int32_t* block_table, std::int64_t token) {
  return kv.base + static_cast<std::int64_t>(block_table[token / kBlockTokens]) * kv.block_bytes;
}

// Brings the cache lines of one head's keys (or values) of a block nearer: blocks lie apart, so the hardware's own
// prefetcher starts anew at each.
template <KvDtype kDtype>
inline void prefetch_head(const void* head, std::int64_t num_elements) {
  const auto* p = static_cast<const char*>(head);
  const auto bytes = num_elements * static_cast<std::int64_t>(sizeof(typename KvElement<kDtype>::Type));
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i);
}

// scores[r, j] = q[r] . k[j] for kRows rows and kBlocks blocks of 16 tokens; `keys` are the blocks' keys of this head.
template <KvDtype kDtype, int kRows, int kBlocks>
inline void score_blocks(std::int64_t head_dim, const typename KvElement<kDtype>::Type* const (&keys)[kBlocks],
                         const float* q, float* scores) {
  F32x16 acc[kRows][kBlocks];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) acc[r][b] = zero16();
  }
  for (std::int64_t d = 0; d < head_dim; ++d) {
    F32x16 k[kBlocks];
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) k[b] = KvElement<kDtype>::load16_kv(keys[b] + d * kBlockTokens);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const F32x16 x = set16(q[r * head_dim + d]);
#pragma GCC unroll 16
      for (int b = 0; b < kBlocks; ++b) acc[r][b] = fma16(k[b], x, acc[r][b]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int b = 0; b < kBlocks; ++b) store16(scores + r * kSpanTokens + b * kBlockTokens, acc[r][b]);
  }
}

// Scores of kRows rows over `num_blocks` blocks from token `first` on, kBlocks at a time so that enough independent
// sums are under way.
template <KvDtype kDtype, int kRows, int kBlocks>
inline void score_rows(const KvLayer& kv, const QueryBlock& query, std::int64_t first, std::int64_t num_blocks,
                       const float* q, float* scores) {
  using Type = typename KvElement<kDtype>::Type;
  const std::int64_t head = query.kv_head * kv.head_dim * kBlockTokens;
  const auto keys_of = [&](std::int64_t b) {
    return reinterpret_cast<const Type*>(kv_block(kv, query.block_table, first + b * kBlockTokens)) + head;
  };
  std::int64_t b = 0;
  for (; b + kBlocks <= num_blocks; b += kBlocks) {
    const Type* keys[kBlocks];
    for (int i = 0; i < kBlocks; ++i) keys[i] = keys_of(b + i);
    for (std::int64_t i = b + kBlocks; i < std::min(b + 2 * kBlocks, num_blocks); ++i) {
      prefetch_head<kDtype>(keys_of(i), kv.head_dim * kBlockTokens);
    }
    score_blocks<kDtype, kRows, kBlocks>(kv.head_dim, keys, q, scores + b * kBlockTokens);
  }
  for (; b < num_blocks; ++b) {
    const Type* const keys[1] = {keys_of(b)};
    score_blocks<kDtype, kRows, 1>(kv.head_dim, keys, q, scores + b * kBlockTokens);
  }
}

template <KvDtype kDtype>
inline void score_all(const KvLayer& kv, const QueryBlock& query, std::int64_t first, std::int64_t num_blocks,
                      std::int64_t rows, const float* q, float* scores) {
  std::int64_t r = 0;
  const auto pass = [&](auto num_rows, auto num_at_once) {
    constexpr int kRows = decltype(num_rows)::value;
    for (; r + kRows <= rows; r += kRows) {
      score_rows<kDtype, kRows, decltype(num_at_once)::value>(kv, query, first, num_blocks, q + r * kv.head_dim,
                                                              scores + r * kSpanTokens);
    }
  };
  pass(std::integral_constant<int, kScoreRows>{}, std::integral_constant<int, 1>{});
  pass(std::integral_constant<int, 4>{}, std::integral_constant<int, kScoreSums / 4>{});
  pass(std::integral_constant<int, 3>{}, std::integral_constant<int, kScoreSums / 3>{});
  pass(std::integral_constant<int, 1>{}, std::integral_constant<int, kScoreSums / 2>{});
}

// Turns one row's scores into weights e^(score - max); tokens outside [begin, end) of the span weigh 0.
inline void softmax_row(const AttendParams& params, std::int64_t begin, std::int64_t end, std::int64_t num_blocks,
                        float* scores, float* max_out, float* sum_out) {
  const V low = set1(static_cast<float>(begin));
  const V high = set1(static_cast<float>(end));
  const V masked = set1(-std::numeric_limits<float>::infinity());
  F32x16 highest = set16(-std::numeric_limits<float>::infinity());
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    for (int i = 0; i < kParts; ++i) {
      float* p = scores + b * kBlockTokens + i * kLanes;
      const V at = add(iota(), set1(static_cast<float>(b * kBlockTokens + i * kLanes)));
      V s = load(p);
      if (params.softcap != 0.0F) {
        // tanh(y) = 1 - 2 / (e^(2y) + 1)
        const V y = div(s, set1(params.softcap));
        const V t = sub(set1(1.0F), div(set1(2.0F), add(exp(add(y, y)), set1(1.0F))));
        s = mul(t, set1(params.softcap));
      }
      s = select_lt(at, high, s, masked);
      s = select_lt(at, low, masked, s);
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

// values[r] = sum over the span's tokens j, in order, of weights[r, j] * v[j], for kRows rows and kVecs x 16 dims.
template <KvDtype kDtype, int kRows, int kVecs>
inline void value_rows(const KvLayer& kv, const QueryBlock& query, std::int64_t first, std::int64_t num_tokens,
                       std::int64_t dim, const float* weights, float* values) {
  using Element = KvElement<kDtype>;
  const auto values_of = [&](std::int64_t b) {
    return reinterpret_cast<const typename Element::Type*>(
               kv_block(kv, query.block_table, first + b * kBlockTokens) + kv.value_offset) +
           query.kv_head * kBlockTokens * kv.value_dim + dim;
  };
  F32x16 acc[kRows][kVecs];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < kVecs; ++c) acc[r][c] = zero16();
  }
  for (std::int64_t b = 0; b * kBlockTokens < num_tokens; ++b) {
    const typename Element::Type* v = values_of(b);
    const std::int64_t n = std::min(kBlockTokens, num_tokens - b * kBlockTokens);
    if ((b + 1) * kBlockTokens < num_tokens) prefetch_head<kDtype>(values_of(b + 1), kBlockTokens * kv.value_dim);
    const float* weight_at = weights + b * kBlockTokens;
    for (std::int64_t j = 0; j < n; ++j) {
      F32x16 x[kVecs];
#pragma GCC unroll 16
      for (int c = 0; c < kVecs; ++c) x[c] = Element::load16_kv(v + j * kv.value_dim + c * 16);
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
    for (int c = 0; c < kVecs; ++c) store16(values + r * kv.value_dim + dim + c * 16, acc[r][c]);
  }
}

template <KvDtype kDtype, int kVecs>
inline void value_dims(const KvLayer& kv, const QueryBlock& query, std::int64_t first, std::int64_t num_tokens,
                       std::int64_t rows, std::int64_t dim, const float* weights, float* values) {
  std::int64_t r = 0;
  const auto pass = [&](auto num_rows) {
    constexpr int kRows = decltype(num_rows)::value;
    for (; r + kRows <= rows; r += kRows) {
      value_rows<kDtype, kRows, kVecs>(kv, query, first, num_tokens, dim, weights + r * kSpanTokens,
                                       values + r * kv.value_dim);
    }
  };
  pass(std::integral_constant<int, kValueRows>{});
  pass(std::integral_constant<int, 3>{});
  pass(std::integral_constant<int, 1>{});
}

template <KvDtype kDtype>
inline void attend_span_of(const KvLayer& kv, const AttendParams& params, const QueryBlock& query, std::int64_t span,
                           float* scratch, const SpanState& out) {
  const std::int64_t rows = query.num_tokens * query.group;
  const std::int64_t first = span * kSpanTokens;
  const std::int64_t last_position = query.position + query.num_tokens - 1;
  const std::int64_t num_tokens = std::min(kSpanTokens, last_position + 1 - first);
  const std::int64_t num_blocks = (num_tokens + kBlockTokens - 1) / kBlockTokens;
  float* q = scratch;
  float* scores = scratch + rows * kv.head_dim;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* head = query.q + r / query.group * query.q_stride + r % query.group * kv.head_dim;
    for (std::int64_t d = 0; d < kv.head_dim; ++d) q[r * kv.head_dim + d] = head[d] * params.scale;
  }
  score_all<kDtype>(kv, query, first, num_blocks, rows, q, scores);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t position = query.position + r / query.group;
    const std::int64_t end = std::min(num_tokens, position + 1 - first);
    const std::int64_t begin = params.window > 0 ? std::max<std::int64_t>(0, position - params.window + 1 - first) : 0;
    if (begin >= end) {
      std::fill_n(scores + r * kSpanTokens, num_blocks * kBlockTokens, 0.0F);
      out.max[r] = 0.0F;
      out.sum[r] = 0.0F;
    } else {
      softmax_row(params, begin, end, num_blocks, scores + r * kSpanTokens, out.max + r, out.sum + r);
    }
  }
  std::int64_t dim = 0;
  for (; dim + kValueVecs * 16 <= kv.value_dim; dim += kValueVecs * 16) {
    value_dims<kDtype, kValueVecs>(kv, query, first, num_tokens, rows, dim, scores, out.values);
  }
  for (; dim < kv.value_dim; dim += 16) {
    value_dims<kDtype, 1>(kv, query, first, num_tokens, rows, dim, scores, out.values);
  }
}

inline void attend_span(const KvLayer& kv, const AttendParams& params, const QueryBlock& query, std::int64_t span,
                        float* scratch, const SpanState& out) {
  if (kv.dtype == KvDtype::kF16) {
    attend_span_of<KvDtype::kF16>(kv, params, query, span, scratch, out);
  } else {
    attend_span_of<KvDtype::kF32>(kv, params, query, span, scratch, out);
  }
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

inline void finish_attend(std::int64_t num_tokens, std::int64_t group, std::int64_t head_dim, std::int64_t value_dim,
                          const SpanState& state, float* out, std::int64_t out_stride) {
  for (std::int64_t r = 0; r < num_tokens * group; ++r) {
    const float inverse = 1.0F / state.sum[r];
    float* p = out + r / group * out_stride + r % group * head_dim;
    for (std::int64_t d = 0; d < head_dim; ++d) p[d] = state.values[r * value_dim + d] * inverse;
  }
}

template <KvDtype kDtype>
inline void store_kv_of(const KvLayer& kv, std::int64_t block, std::int64_t slot, const float* k, const float* v) {
  using Type = typename KvElement<kDtype>::Type;
  std::uint8_t* base = kv.base + block * kv.block_bytes;
  auto* keys = reinterpret_cast<Type*>(base) + slot;
  auto* values = reinterpret_cast<Type*>(base + kv.value_offset);
  for (std::int64_t h = 0; h < kv.num_kv_heads; ++h) {
    for (std::int64_t d = 0; d < kv.head_dim; d += 16) {
      const std::int64_t n = std::min<std::int64_t>(16, kv.head_dim - d);
      Type k16[16];
      Type v16[16];
      const F32x16 kx = load16_first(k + h * kv.head_dim + d, n);
      const F32x16 vx = load16_first(v + h * kv.head_dim + d, n);
      for (int i = 0; i < kParts; ++i) {
        if constexpr (kDtype == KvDtype::kF16) {
          store_f16(k16 + i * kLanes, kx.part[i]);
          store_f16(v16 + i * kLanes, vx.part[i]);
        } else {
          store(k16 + i * kLanes, kx.part[i]);
          store(v16 + i * kLanes, vx.part[i]);
        }
      }
      for (std::int64_t i = 0; i < n; ++i) keys[(h * kv.head_dim + d + i) * kBlockTokens] = k16[i];
      std::copy_n(v16, n, values + (h * kBlockTokens + slot) * kv.value_dim + d);
    }
  }
}

inline void store_kv_row(const KvLayer& kv, std::int64_t block, std::int64_t slot, const float* k, const float* v) {
  if (kv.dtype == KvDtype::kF16) {
    store_kv_of<KvDtype::kF16>(kv, block, slot, k, v);
  } else {
    store_kv_of<KvDtype::kF32>(kv, block, slot, k, v);
  }
}

// Attention of a span over coded keys and values (int8, int4) by integer dot products, compiled once per ISA inside its
// namespace. Contract: ops/attention/attention.h.

// What is left of the code of 0 after load_codes.
template <int kBits>
inline constexpr std::int32_t kZero = zero_code(kBits) - kCodeOffset<kBits>;

// Brings a unit of codes nearer.
template <int kBits>
inline void prefetch_unit(const std::uint8_t* unit) {
  for (std::int64_t i = 0; i < unit_bytes(kBits); i += 64) __builtin_prefetch(unit + i, 0, 2);
}

// Codes of x[0..n), n a multiple of 16, for the largest magnitude `highest`: x = the result * code.
inline float code_row(const float* x, std::int64_t n, float highest, std::int8_t* codes) {
  const float scale = highest / 127.0F;
  const V inverse = set1(scale > 0.0F ? 1.0F / scale : 0.0F);
  for (std::int64_t d = 0; d < n; d += kLanes) {
    const V code = mul(load(x + d), inverse);
    store_i8(codes + d, max(min(code, set1(127.0F)), set1(-127.0F)));
  }
  return scale;
}

inline float find_highest(const float* x, std::int64_t n) {
  V highest = zero();
  for (std::int64_t d = 0; d < n; d += kLanes) highest = max(abs(load(x + d)), highest);
  return reduce_max(highest);
}

template <KvDtype kDtype>
inline void prepare_codes(const KvLayer& kv, const AttendParams& params, const QueryBlock& query, float* scratch) {
  const std::int64_t rows = query.num_tokens * query.group;
  const Queries<std::int8_t> queries{reinterpret_cast<std::int8_t*>(scratch), rows * kQueryStride};
  auto* coded = reinterpret_cast<CodedRow*>(scratch + plan_scratch(rows, kv).rows);
  float q[kMaxHeadDim];
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* head = query.row(r, kv.head_dim);
    for (std::int64_t d = 0; d < kv.head_dim; ++d) q[d] = head[d] * params.scale;
    std::fill(q + kv.head_dim, q + kv.key_dim, 0.0F);
    rotate_runs(q, kv.key_dim);
    const float highest = find_highest(q, kv.key_dim);
    std::int32_t sum = 0;
    for (std::int64_t d = 0; d < kv.key_dim; d += kQueryDims) {
      const std::int64_t n = std::min(kQueryDims, kv.key_dim - d);
      std::int8_t* codes = queries.from_row(r).at(d);
      coded[r].query_scale = code_row(q + d, n, highest, codes);
      for (std::int64_t i = 0; i < n; ++i) sum += codes[i];
    }
    coded[r].query_sum = sum;
    coded[r].score_start = -kZero<key_bits(kDtype)> * sum;
  }
}

// acc[r] += q[r] . c over 32 dimensions, for kLanes tokens.
template <int kBits, int kRows>
inline void dot_unit(const Code (&c)[8], const std::int8_t* q, IV (&acc)[kRows]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc[r] = dot<kBits, 0, 8>(acc[r], c, q + r * kQueryStride);
}

// scores[r, j] = q[r] . k[j] for kRows rows and block `b` of the span.
template <int kBits, bool kHasCenter, int kRows>
inline void score_codes(const SpanView& span, std::int64_t b, const Queries<std::int8_t>& queries,
                        const CodedRow* rows, float* scores) {
  const std::uint8_t* keys = span.keys[b];
  const std::uint8_t* ahead = span.keys[b + kCodedTilesAhead];
  for (int part = 0; part < kParts; ++part) {
    IV acc[kRows];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc[r] = iset1(rows[r].score_start);
    for (std::int64_t d = 0; d < span.kv.key_dim; d += kUnitDims) {
      const std::int64_t at = d / kUnitDims * unit_bytes(kBits);
      if (part == 0) prefetch_unit<kBits>(ahead + at);
      Code c[8];
      load_codes<kBits>(keys + at, part, c);
      dot_unit<kBits>(c, queries.at(d), acc);
    }
    const V scale = load_scales(keys + span.to_key_scales, part);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      V score = to_f32(acc[r]);
      if constexpr (kHasCenter) {
        score = fma(score, scale, set1(rows[r].centers[b]));
      } else {
        score = mul(score, scale);
      }
      store(scores + r * kSpanTokens + b * kBlockTokens + part * kLanes, mul(score, set1(rows[r].query_scale)));
    }
  }
}

template <int kBits, bool kHasCenter>
inline void score_all_codes(const SpanView& span, std::int64_t num_rows, const Queries<std::int8_t>& queries,
                            const CodedRow* rows, float* scores) {
  std::int64_t r = 0;
  const auto pass = [&](auto rows_at_once) {
    constexpr int kRows = decltype(rows_at_once)::value;
    for (; r + kRows <= num_rows; r += kRows) {
      for (std::int64_t b = 0; b < span.num_blocks; ++b) {
        score_codes<kBits, kHasCenter, kRows>(span, b, queries.from_row(r), rows + r, scores + r * kSpanTokens);
      }
    }
  };
  pass(std::integral_constant<int, kCodedScoreRows>{});
  if constexpr (kCodedScoreRows > 4) pass(std::integral_constant<int, 4>{});
  if constexpr (kCodedScoreRows > 3) pass(std::integral_constant<int, 3>{});
  pass(std::integral_constant<int, 1>{});
}

// Each row's product with the centers of the span's blocks, which are taken together as one tile of 16 rows.
inline void multiply_centers(const SpanView& span, std::int64_t num_rows, const Queries<std::int8_t>& queries,
                             std::uint8_t* tile, CodedRow* rows) {
  const std::int64_t key_dim = span.kv.key_dim;
  std::uint16_t scales[kSpanBlocks] = {};
  for (std::int64_t b = 0; b < span.num_blocks; ++b) {
    const std::uint8_t* center = span.keys[b] + span.to_centers;
    for (std::int64_t d = 0; d < key_dim / 2; d += 4) {
      std::uint32_t four;
      std::memcpy(&four, center + d, 4);
      const std::uint32_t halves[2] = {four & 0x0f0f0f0fu, four >> 4 & 0x0f0f0f0fu};
      std::uint8_t* line = tile + (d / 16 * kUnitDims + d % 16) * kSpanBlocks + b * 4;
      std::memcpy(line, &halves[0], 4);
      std::memcpy(line + 16 * kSpanBlocks, &halves[1], 4);
    }
    std::memcpy(scales + b, center + key_dim / 2, 2);
  }
  for (std::int64_t r = 0; r < num_rows; ++r) {
    for (int part = 0; part < kParts; ++part) {
      // The tile has bytes around 8, whatever load_codes takes off bytes.
      IV acc[1] = {iset1((kCodeOffset<8> - zero_code(4)) * rows[r].query_sum)};
      for (std::int64_t d = 0; d < key_dim; d += kUnitDims) {
        Code c[8];
        load_codes<8>(tile + d * kSpanBlocks, part, c);
        dot_unit<8>(c, queries.from_row(r).at(d), acc);
      }
      store(rows[r].centers + part * kLanes, mul(to_f32(acc[0]), load_f16(scales + part * kLanes)));
    }
  }
}

// The codes of a row's weights times the tokens' value scales. `weights` [kSpanTokens] are overwritten.
template <int kBits>
inline void code_weights(const SpanView& span, float* weights, std::int8_t* codes, CodedRow* row) {
  V highest = zero();
  for (std::int64_t b = 0; b < span.num_blocks; ++b) {
    const std::uint8_t* scales = span.values[b] + span.to_value_scales;
    for (int part = 0; part < kParts; ++part) {
      float* p = weights + b * kBlockTokens + part * kLanes;
      const V scaled = mul(load(p), load_scales(scales, part));
      store(p, scaled);
      highest = max(abs(scaled), highest);
    }
  }
  const float top = reduce_max(highest);
  const V factor = set1(top > 0.0F ? 16256.0F / top : 0.0F);
  V high_sum = zero();
  V low_sum = zero();
  for (std::int64_t j = 0; j < span.num_blocks * kBlockTokens; j += kLanes) {
    const V t = mul(load(weights + j), factor);
    const V high = round(mul(t, set1(0.0078125F)));
    const V low = round(sub(t, mul(high, set1(128.0F))));
    store_i8(codes + j, high);
    store_i8(codes + kSpanTokens + j, low);
    high_sum = add(high_sum, high);
    low_sum = add(low_sum, low);
  }
  row->value_scale = top / 16256.0F;
  row->high_start = -kZero<kBits> * static_cast<std::int32_t>(reduce_integral_sum(high_sum));
  row->low_start = -kZero<kBits> * static_cast<std::int32_t>(reduce_integral_sum(low_sum));
}

// values[r] = sum over the span's tokens j of weights[r, j] * v[j], for kRows rows and 32 dimensions from `dim` on.
template <int kBits, int kKeyBits, int kRows>
inline void value_codes(const SpanView& span, std::int64_t dim, const std::int8_t* weights, const CodedRow* rows,
                        float* values) {
  const std::int64_t at = dim / kUnitDims * unit_bytes(kBits);
  const std::int64_t key_at = dim / kUnitDims * unit_bytes(kKeyBits);
  for (int part = 0; part < kParts; ++part) {
    IV high[kRows][2];
    IV low[kRows][2];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      high[r][0] = high[r][1] = iset1(rows[r].high_start);
      low[r][0] = low[r][1] = iset1(rows[r].low_start);
    }
    for (std::int64_t b = 0; b < span.num_blocks; ++b) {
      // As keys lie, which have as many lines or more: the last blocks ask for the next span's.
      if (part == 0) prefetch_unit<kKeyBits>(span.values[b + kCodedTilesAhead] + key_at);
      Code c[8];
      load_codes<kBits>(span.values[b] + at, part, c);
      const std::int8_t* w = weights + b * kBlockTokens;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const std::int8_t* row = w + r * kWeightStride;
        high[r][0] = dot_chain<kBits, 0, 4>(high[r][0], c, row);
        high[r][1] = dot_chain<kBits, 4, 8>(high[r][1], c, row);
        low[r][0] = dot_chain<kBits, 0, 4>(low[r][0], c, row + kSpanTokens);
        low[r][1] = dot_chain<kBits, 4, 8>(low[r][1], c, row + kSpanTokens);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float* p = values + r * span.kv.value_dim + dim + part * kLanes;
      for (int half = 0; half < 2; ++half) {
        const V sum = fma(to_f32(high[r][half]), set1(128.0F), to_f32(low[r][half]));
        store(p + half * 16, mul(sum, set1(rows[r].value_scale)));
      }
    }
  }
}

template <int kBits, int kKeyBits>
inline void value_all_codes(const SpanView& span, std::int64_t num_rows, const std::int8_t* weights,
                            const CodedRow* rows, float* values) {
  for (std::int64_t dim = 0; dim < span.kv.value_dim; dim += kUnitDims) {
    std::int64_t r = 0;
    const auto pass = [&](auto rows_at_once) {
      constexpr int kRows = decltype(rows_at_once)::value;
      for (; r + kRows <= num_rows; r += kRows) {
        value_codes<kBits, kKeyBits, kRows>(span, dim, weights + r * kWeightStride, rows + r,
                                            values + r * span.kv.value_dim);
      }
    };
    pass(std::integral_constant<int, kCodedValueRows>{});
    if constexpr (kCodedValueRows > 3) pass(std::integral_constant<int, 3>{});
    pass(std::integral_constant<int, 1>{});
  }
}

// Scales and centers lie apart from the codes; one after the other, each would be waited for.
template <KvDtype kDtype>
inline void prefetch_scales(const SpanView& span) {
  for (std::int64_t b = 0; b < span.num_blocks; ++b) {
    if constexpr (has_center(kDtype)) __builtin_prefetch(span.keys[b] + span.to_centers, 0, 2);
    __builtin_prefetch(span.keys[b] + span.to_key_scales, 0, 2);
    __builtin_prefetch(span.values[b] + span.to_value_scales, 0, 2);
  }
}

template <KvDtype kDtype>
inline void attend_codes(const SpanView& span, const AttendParams& params, const QueryBlock& query, float* scratch,
                         const SpanState& out) {
  const std::int64_t num_rows = query.num_tokens * query.group;
  const AttendScratch at = plan_scratch(num_rows, span.kv);
  const Queries<std::int8_t> queries{reinterpret_cast<std::int8_t*>(scratch), num_rows * kQueryStride};
  float* scores = scratch + at.scores;
  auto* rows = reinterpret_cast<CodedRow*>(scratch + at.rows);
  auto* weights = reinterpret_cast<std::int8_t*>(scratch + at.weights);
  prefetch_scales<kDtype>(span);
  if constexpr (has_center(kDtype)) {
    multiply_centers(span, num_rows, queries, reinterpret_cast<std::uint8_t*>(scratch + at.centers), rows);
  }
  score_all_codes<key_bits(kDtype), has_center(kDtype)>(span, num_rows, queries, rows, scores);
  for (std::int64_t r = 0; r < num_rows; ++r) {
    float* row = scores + r * kSpanTokens;
    weigh_row(span, params, query, r, row, out);
    code_weights<value_bits(kDtype)>(span, row, weights + r * kWeightStride, rows + r);
  }
  value_all_codes<value_bits(kDtype), key_bits(kDtype)>(span, num_rows, weights, rows, out.values);
}

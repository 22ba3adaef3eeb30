// What every dtype's attention over a span shares, compiled once per ISA inside its namespace: where its blocks lie,
// and softmax. Contract: ops/attention/attention.h.

// Lists of a span's blocks go on with this many blocks of what is read next, so that they can be brought nearer.
inline constexpr int kTilesAhead = 8;

// One span of one head as a work item sees it: where its blocks lie, from the first that any row sees.
struct SpanView {
  const KvLayer& kv;
  std::int64_t first;  // position of the first token
  std::int64_t num_tokens;
  std::int64_t num_blocks;
  // From a block's keys (values) of the head:
  std::int64_t to_key_scales;
  std::int64_t to_value_scales;
  std::int64_t to_centers;
  const std::uint8_t* keys[kSpanBlocks + kTilesAhead];    // then the values
  const std::uint8_t* values[kSpanBlocks + kTilesAhead];  // then the next span's keys
};

inline SpanView view_span(const KvLayer& kv, const AttendParams& params, const QueryBlock& query, std::int64_t span) {
  const std::int64_t last = query.position + query.num_tokens - 1;
  const std::int64_t seen = params.first_seen(query.position) / kBlockTokens * kBlockTokens;
  const std::int64_t first = std::max(span * kSpanTokens, seen);
  const std::int64_t num_tokens = std::min((span + 1) * kSpanTokens, last + 1) - first;
  const std::int64_t num_blocks = (num_tokens + kBlockTokens - 1) / kBlockTokens;
  const std::int64_t scale_bytes = kv_scale_bytes(kv.dtype);
  const std::int64_t to_key_scales = kv.key_scale_offset + query.kv_head * (scale_bytes - kv.key_head_bytes);
  const std::int64_t to_value_scales =
      kv.value_scale_offset - kv.value_offset + query.kv_head * (scale_bytes - kv.value_head_bytes);
  const std::int64_t to_centers = kv.center_offset + query.kv_head * (kv.center_head_bytes - kv.key_head_bytes);
  SpanView view{kv, first, num_tokens, num_blocks, to_key_scales, to_value_scales, to_centers, {}, {}};
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
template <typename Element>
struct Queries {
  Element* q;
  std::int64_t run;  // elements from one run of kQueryDims dimensions to the next

  // Dimension d of the first row.
  inline Element* at(std::int64_t d) const { return q + d / kQueryDims * run + d % kQueryDims; }
  inline Queries from_row(std::int64_t r) const { return {q + r * kQueryStride, run}; }
};

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
      if (params.softcap != 0.0F) {
        s = cap_scores(s, params.softcap);
        store(p, s);
      }
      if (!is_seen_whole) {
        const V at = add(iota(), set1(static_cast<float>(b * kBlockTokens + i * kLanes)));
        s = select_lt(at, low, masked, select_lt(at, high, s, masked));
        store(p, s);
      }
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

// Row `r`'s scores to weights; its maximum and sum go to `out`. A row that sees nothing of the span weighs 0.
inline void weigh_row(const SpanView& span, const AttendParams& params, const QueryBlock& query, std::int64_t r,
                      float* scores, const SpanState& out) {
  const std::int64_t position = query.position + r / query.group;
  const std::int64_t end = std::min(span.num_tokens, position + 1 - span.first);
  const std::int64_t begin = std::max<std::int64_t>(0, params.first_seen(position) - span.first);
  if (begin < end) {
    softmax_row(params, begin, end, span.num_blocks, scores, out.max + r, out.sum + r);
    return;
  }
  std::fill_n(scores, span.num_blocks * kBlockTokens, 0.0F);
  out.max[r] = 0.0F;
  out.sum[r] = 0.0F;
}

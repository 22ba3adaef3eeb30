// attend, compiled once per ISA inside its namespace. Contract: ops/attention/attention.h.

inline void prepare_queries(const KvLayer& kv, const AttendParams& params, const QueryBlock& query, float* scratch) {
  for_kv_dtype(kv.dtype, [&](auto dtype) {
    constexpr KvDtype kDtype = decltype(dtype)::value;
    if constexpr (is_coded(kDtype)) {
      prepare_codes<kDtype>(kv, params, query, scratch);
    } else {
      prepare_floats(kv, params, query, scratch);
    }
  });
}

inline void attend_span(const KvLayer& kv, const AttendParams& params, const QueryBlock& query, std::int64_t index,
                        float* scratch, const SpanState& out) {
  const SpanView span = view_span(kv, params, query, index);
  for_kv_dtype(kv.dtype, [&](auto dtype) {
    constexpr KvDtype kDtype = decltype(dtype)::value;
    if constexpr (is_coded(kDtype)) {
      attend_codes<kDtype>(span, params, query, scratch, out);
    } else {
      attend_floats<kDtype>(span, params, query, scratch, out);
    }
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
    for (std::int64_t d = 0; d < value_dim; d += kLanes) {
      store(mine + d, fma(load(mine + d), a, mul(load(theirs + d), b)));
    }
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
    float* values = state.values + r * kv.value_dim;
    if (is_rotated(kv.dtype)) rotate_runs(values, kv.value_dim);
    float* p = out + r / query.group * query.q_stride + r % query.group * kv.head_dim;
    for (std::int64_t d = 0; d < kv.head_dim; ++d) p[d] = values[d] * inverse;
  }
}

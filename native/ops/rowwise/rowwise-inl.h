// Bodies of the row-wise ops, compiled once per ISA inside its namespace. Contract: ops/rowwise/rowwise.h.

inline void rms_norm_row(const float* x, const float* weight, float eps, std::int64_t n, float* out) {
  F32x16 squares = zero16();
  for (std::int64_t i = 0; i < n; i += 16) {
    const F32x16 v = load16_first(x + i, n - i);
    squares = fma16(v, v, squares);
  }
  const float scale = 1.0F / std::sqrt(sum_lanes(squares) / static_cast<float>(n) + eps);
  for (std::int64_t i = 0; i < n; i += 16) {
    const F32x16 v = mul16(load16_first(x + i, n - i), set16(scale));
    store16_first(out + i, mul16(v, load16_first(weight + i, n - i)), n - i);
  }
}

inline void silu_mul_row(const float* gate, const float* up, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; i += 16) {
    const F32x16 g = load16_first(gate + i, n - i);
    const F32x16 u = load16_first(up + i, n - i);
    const F32x16 r = map16([&](int p) {
      const V denominator = add(set1(1.0F), exp(sub(zero(), g.part[p])));
      return mul(div(g.part[p], denominator), u.part[p]);
    });
    store16_first(out + i, r, n - i);
  }
}

inline void rope_row(float* x, std::int64_t num_heads, std::int64_t head_dim, std::int64_t num_pairs, bool is_adjacent,
                     const float* cos, const float* sin) {
  const std::int64_t stride = is_adjacent ? 2 : 1;
  const std::int64_t other = is_adjacent ? 1 : num_pairs;
  for (std::int64_t h = 0; h < num_heads; ++h) {
    float* head = x + h * head_dim;
    for (std::int64_t i = 0; i < num_pairs; ++i) {
      const float a = head[i * stride];
      const float b = head[i * stride + other];
      head[i * stride] = a * cos[i] - b * sin[i];
      head[i * stride + other] = a * sin[i] + b * cos[i];
    }
  }
}

// Stored keys and values to float32 in registers, compiled once per ISA inside its namespace. Layout: kv_layout.h.

// 16 neighbouring elements of a dtype that is not coded.
template <KvDtype kDtype>
inline F32x16 load16_kv(const std::uint8_t* p) {
  return map16([p](int i) {
    if constexpr (kDtype == KvDtype::kF16) {
      return load_f16(reinterpret_cast<const std::uint16_t*>(p) + i * kLanes);
    } else if constexpr (kDtype == KvDtype::kBf16) {
      return load_bf16(reinterpret_cast<const std::uint16_t*>(p) + i * kLanes);
    } else {
      return load(reinterpret_cast<const float*>(p) + i * kLanes);
    }
  });
}

// The 16 tokens' scales of one head, part `i` of them.
inline V load_scales(const std::uint8_t* scales, int i) {
  return load_f16(reinterpret_cast<const std::uint16_t*>(scales) + i * kLanes);
}

// Calls `f` with the dtype as an integral constant.
template <typename F>
inline void for_kv_dtype(KvDtype dtype, F f) {
  switch (dtype) {
    case KvDtype::kF16: return f(std::integral_constant<KvDtype, KvDtype::kF16>{});
    case KvDtype::kBf16: return f(std::integral_constant<KvDtype, KvDtype::kBf16>{});
    case KvDtype::kF32: return f(std::integral_constant<KvDtype, KvDtype::kF32>{});
    case KvDtype::kI8: return f(std::integral_constant<KvDtype, KvDtype::kI8>{});
    case KvDtype::kI4: return f(std::integral_constant<KvDtype, KvDtype::kI4>{});
  }
}

// Rows of the Walsh-Hadamard matrix of order 16: the sign of (i, lane) is the parity of i & lane.
struct HadamardSigns {
  float rows[16][16];
  constexpr HadamardSigns() : rows() {
    for (int i = 0; i < 16; ++i) {
      for (int lane = 0; lane < 16; ++lane) {
        int bits = i & lane;
        bits ^= bits >> 2;
        bits ^= bits >> 1;
        rows[i][lane] = bits % 2 != 0 ? -1.0F : 1.0F;
      }
    }
  }
};
alignas(64) inline constexpr HadamardSigns kHadamardSigns;

// The Walsh-Hadamard transform of each run of rotation_dims(n) dimensions of x[0..n), in place and not normalised:
// first 16 neighbours, as a sum in order, then butterflies over distances 16, 32, ... run / 2.
inline void rotate_runs(float* x, std::int64_t n) {
  const std::int64_t run = rotation_dims(n);
  for (std::int64_t d = 0; d < n; d += 16) {
    F32x16 sum = zero16();
    for (int i = 0; i < 16; ++i) sum = fma16(set16(x[d + i]), load16(kHadamardSigns.rows[i]), sum);
    store16(x + d, sum);
  }
  for (std::int64_t distance = 16; distance < run; distance *= 2) {
    for (std::int64_t i = 0; i < n; i += 2 * distance) {
      for (std::int64_t j = i; j < i + distance; j += kLanes) {
        const V a = load(x + j);
        const V b = load(x + j + distance);
        store(x + j, add(a, b));
        store(x + j + distance, sub(a, b));
      }
    }
  }
}

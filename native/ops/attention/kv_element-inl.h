// Stored keys and values to float32 in registers, compiled once per ISA inside its namespace. Layout: kv_layout.h.

// 16 neighbouring elements of a dtype of whole bytes.
template <KvDtype kDtype>
inline F32x16 load16_kv(const std::uint8_t* p) {
  return map16([p](int i) {
    if constexpr (kDtype == KvDtype::kF16) {
      return load_f16(reinterpret_cast<const std::uint16_t*>(p) + i * kLanes);
    } else if constexpr (kDtype == KvDtype::kBf16) {
      return load_bf16(reinterpret_cast<const std::uint16_t*>(p) + i * kLanes);
    } else if constexpr (kDtype == KvDtype::kI8) {
      return load_i8(reinterpret_cast<const std::int8_t*>(p) + i * kLanes);
    } else {
      return load(reinterpret_cast<const float*>(p) + i * kLanes);
    }
  });
}

// A line of keys, taken one dimension (16 tokens) after the other.
template <KvDtype kDtype>
struct KeyLine {
  const std::uint8_t* p;
  inline void open(const std::uint8_t* line) { p = line; }
  inline F32x16 next() {
    const F32x16 key = load16_kv<kDtype>(p);
    p += kv_bytes(kDtype, kBlockTokens);
    return key;
  }
};

template <>
struct KeyLine<KvDtype::kI4> {
  IV words[kParts];
  inline void open(const std::uint8_t* line) {
    for (int i = 0; i < kParts; ++i) words[i] = load_words(line + i * kLanes * 4);
  }
  inline F32x16 next() {
    const F32x16 key = map16([this](int i) { return low_nibble(words[i]); });
    for (int i = 0; i < kParts; ++i) words[i] = drop_nibble(words[i]);
    return key;
  }
};

// kVecs x 16 dimensions from `dim` on of one token's values.
template <KvDtype kDtype, int kVecs>
inline void load_values(const std::uint8_t* token, std::int64_t dim, F32x16 (&x)[kVecs]) {
  if constexpr (kDtype != KvDtype::kI4) {
#pragma GCC unroll 16
    for (int c = 0; c < kVecs; ++c) x[c] = load16_kv<kDtype>(token + kv_bytes(kDtype, dim + c * 16));
  } else if constexpr (kVecs == 1) {
    const bool is_high = dim % 32 != 0;
    x[0] = map16([&](int i) {
      const IV bytes = load_bytes(token + dim / 32 * 16 + i * kLanes);
      return low_nibble(is_high ? drop_nibble(bytes) : bytes);
    });
  } else {
    static_assert(kVecs % 2 == 0);
#pragma GCC unroll 16
    for (int c = 0; c < kVecs; c += 2) {
      for (int i = 0; i < kParts; ++i) {
        const IV bytes = load_bytes(token + (dim + c * 16) / 2 + i * kLanes);
        x[c].part[i] = low_nibble(bytes);
        x[c + 1].part[i] = low_nibble(drop_nibble(bytes));
      }
    }
  }
}

// The 16 tokens' scales of one head's keys or values, and their minima behind them.
inline const std::uint8_t* scales_of(const std::uint8_t* head, std::int64_t head_bytes, KvDtype dtype) {
  return head + head_bytes - kv_scale_bytes(dtype);
}
inline F32x16 load_scales(const std::uint8_t* scales) { return load16_kv<KvDtype::kF16>(scales); }
inline F32x16 load_minima(const std::uint8_t* scales) { return load16_kv<KvDtype::kF16>(scales + kBlockTokens * 2); }

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

// The Walsh-Hadamard transform of each run of `run` (a power of two from 16 on) of x[0..n), in place and not
// normalised: first 16 neighbours, as a sum in order, then butterflies over distances 16, 32, ... run / 2.
inline void rotate_runs(float* x, std::int64_t n, std::int64_t run) {
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

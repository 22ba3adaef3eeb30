// store_kv: rounds one token's keys and values to the cache's dtype. Compiled once per ISA inside its namespace; the
// rounding rule and the layout are in kv_layout.h.

inline constexpr std::int64_t kMaxKvHeadDim = 4096;
inline constexpr float kMaxF16 = 65504.0F;

// 16 of x[0..n) from `d` on; past the end the last one again.
inline F32x16 load16_or_last(const float* x, std::int64_t d, std::int64_t n) {
  if (n - d >= 16) return load16(x + d);
  float tmp[16];
  for (std::int64_t i = 0; i < 16; ++i) tmp[i] = x[std::min(d + i, n - 1)];
  return load16(tmp);
}

// `x` held to the finite float16 numbers and rounded to one; NaN becomes the largest.
inline float round_to_f16(float x, std::uint16_t* bits) {
  std::uint16_t rounded[kLanes];
  store_f16(rounded, max(min(set1(x), set1(kMaxF16)), set1(-kMaxF16)));
  float back[kLanes];
  store(back, load_f16(rounded));
  *bits = rounded[0];
  return back[0];
}

// To nearest even. A NaN keeps its sign and becomes quiet: rounding could carry it into infinity.
inline std::uint16_t round_to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// One token's scale and minimum, stored at its place among the block's, and the codes they give.
template <KvDtype kDtype>
inline void quantize_head(const float* x, std::int64_t n, std::uint16_t* scales, std::int8_t* codes) {
  F32x16 low = set16(x[0]);
  F32x16 high = set16(x[0]);
  for (std::int64_t d = 0; d < n; d += 16) {
    const F32x16 a = load16_or_last(x, d, n);
    for (int i = 0; i < kParts; ++i) {
      low.part[i] = min(low.part[i], a.part[i]);
      high.part[i] = max(high.part[i], a.part[i]);
    }
  }
  const float highest = max_lanes(high);
  const float lowest = -max_lanes(map16([&](int i) { return sub(zero(), low.part[i]); }));
  float minimum = 0.0F;
  float scale;
  if constexpr (has_minimum(kDtype)) {
    minimum = round_to_f16(lowest, scales + kBlockTokens);
    scale = round_to_f16((highest - minimum) / 15.0F, scales);
  } else {
    scale = round_to_f16(std::max(highest, -lowest) / 127.0F, scales);
  }
  const V inverse = set1(scale > 0.0F ? 1.0F / scale : 0.0F);
  const V bottom = set1(has_minimum(kDtype) ? 0.0F : -127.0F);
  const V top = set1(has_minimum(kDtype) ? 15.0F : 127.0F);
  for (std::int64_t d = 0; d < n; d += 16) {
    const F32x16 a = load16_or_last(x, d, n);
    for (int i = 0; i < kParts; ++i) {
      const V code = mul(sub(a.part[i], set1(minimum)), inverse);
      store_i8(codes + d + i * kLanes, max(min(code, top), bottom));
    }
  }
}

// Eight int4 codes as a word, the first in the lowest nibble.
inline std::uint32_t pack_nibbles(const std::int8_t* codes) {
  std::uint32_t word = 0;
  for (int i = 0; i < 8; ++i) word |= static_cast<std::uint32_t>(codes[i] & 15) << (4 * i);
  return word;
}

template <KvDtype kDtype>
inline void store_quantized(const KvLayer& kv, std::uint8_t* keys, std::uint8_t* values, std::int64_t slot,
                            const float* k, const float* v) {
  std::int8_t codes[kMaxKvHeadDim + 32];
  const auto quantize = [&](const float* x, std::uint8_t* head, std::int64_t head_bytes) {
    auto* scales = reinterpret_cast<std::uint16_t*>(head + head_bytes - kv_scale_bytes(kDtype)) + slot;
    quantize_head<kDtype>(x, kv.head_dim, scales, codes);
    // Codes past head_dim meet q = 0, or make values that are not used.
    std::fill_n(codes + kv.head_dim, 32, std::int8_t{0});
  };
  quantize(k, keys, kv.key_head_bytes);
  if constexpr (kDtype == KvDtype::kI4) {
    auto* words = reinterpret_cast<std::uint32_t*>(keys) + slot;
    for (std::int64_t d = 0; d < kv.key_dim; d += 8) words[d / 8 * kBlockTokens] = pack_nibbles(codes + d);
  } else {
    for (std::int64_t d = 0; d < kv.head_dim; ++d) keys[d * kBlockTokens + slot] = static_cast<std::uint8_t>(codes[d]);
  }
  quantize(v, values, kv.value_head_bytes);
  std::uint8_t* token = values + slot * kv_bytes(kDtype, kv.value_dim);
  if constexpr (kDtype == KvDtype::kI4) {
    for (std::int64_t d = 0; d < kv.value_dim; d += 32) {
      for (std::int64_t i = 0; i < 16; ++i) {
        token[d / 2 + i] = static_cast<std::uint8_t>(codes[d + i] | codes[d + 16 + i] << 4);
      }
    }
  } else {
    std::copy_n(reinterpret_cast<const std::uint8_t*>(codes), kv.head_dim, token);
  }
}

// 16 floats as elements of a dtype that is not quantised.
template <KvDtype kDtype, typename Element>
inline void round16(const F32x16& x, Element* out) {
  if constexpr (kDtype == KvDtype::kBf16) {
    float tmp[16];
    store16(tmp, x);
    for (int i = 0; i < 16; ++i) out[i] = round_to_bf16(tmp[i]);
  } else {
    for (int i = 0; i < kParts; ++i) {
      if constexpr (kDtype == KvDtype::kF16) {
        store_f16(out + i * kLanes, x.part[i]);
      } else {
        store(out + i * kLanes, x.part[i]);
      }
    }
  }
}

template <KvDtype kDtype>
inline void store_floats(const KvLayer& kv, std::uint8_t* keys, std::uint8_t* values, std::int64_t slot, const float* k,
                         const float* v) {
  using Element = std::conditional_t<kDtype == KvDtype::kF32, float, std::uint16_t>;
  auto* keys_at = reinterpret_cast<Element*>(keys) + slot;
  auto* values_at = reinterpret_cast<Element*>(values) + slot * kv.value_dim;
  for (std::int64_t d = 0; d < kv.head_dim; d += 16) {
    const std::int64_t n = std::min<std::int64_t>(16, kv.head_dim - d);
    Element rounded[16];
    round16<kDtype>(load16_first(k + d, n), rounded);
    for (std::int64_t i = 0; i < n; ++i) keys_at[(d + i) * kBlockTokens] = rounded[i];
    round16<kDtype>(load16_first(v + d, n), rounded);
    std::copy_n(rounded, n, values_at + d);
  }
}

template <KvDtype kDtype>
inline void store_kv_of(const KvLayer& kv, std::int64_t block, std::int64_t slot, const float* k, const float* v) {
  std::uint8_t* base = kv.base + block * kv.block_bytes;
  for (std::int64_t h = 0; h < kv.num_kv_heads; ++h) {
    std::uint8_t* keys = base + h * kv.key_head_bytes;
    std::uint8_t* values = base + kv.value_offset + h * kv.value_head_bytes;
    if constexpr (has_scale(kDtype)) {
      store_quantized<kDtype>(kv, keys, values, slot, k + h * kv.head_dim, v + h * kv.head_dim);
    } else {
      store_floats<kDtype>(kv, keys, values, slot, k + h * kv.head_dim, v + h * kv.head_dim);
    }
  }
}

inline void store_kv_row(const KvLayer& kv, std::int64_t block, std::int64_t slot, const float* k, const float* v) {
  for_kv_dtype(kv.dtype, [&](auto dtype) { store_kv_of<decltype(dtype)::value>(kv, block, slot, k, v); });
}

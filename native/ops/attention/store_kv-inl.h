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

// Writes the codes and scale of the center that a block's keys of one head get from those of the block before (null:
// it becomes 0).
inline void make_center(const KvLayer& kv, const std::uint8_t* keys_before, const std::uint8_t* center_before,
                        std::uint8_t* center) {
  float scale = 0.0F;
  if (keys_before == nullptr) {
    std::fill_n(center, kv.key_dim, std::uint8_t{0});
    std::memcpy(center + kv.key_dim, &scale, 4);
    return;
  }
  const std::uint8_t* scales = scales_of(keys_before, kv.key_head_bytes, KvDtype::kI4);
  float token_scales[16];
  float minima[16];
  store16(token_scales, load_scales(scales));
  store16(minima, load_minima(scales));
  float before;
  std::memcpy(&before, center_before + kv.key_dim, 4);
  float mean[kMaxKvHeadDim + 16];
  float highest = 0.0F;
  for (std::int64_t d = 0; d < kv.key_dim; ++d) {
    const std::uint8_t* words = keys_before + d / 8 * 64;
    float sum = 0.0F;
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      const int code = words[j * 4 + d % 8 / 2] >> (d % 2 * 4) & 15;
      sum = sum + (token_scales[j] * static_cast<float>(code) + minima[j]);
    }
    const auto offset = static_cast<float>(static_cast<std::int8_t>(center_before[d]));
    mean[d] = before * offset + sum * 0.0625F;
    highest = std::max(highest, std::fabs(mean[d]));
  }
  scale = highest / 127.0F;
  const V inverse = set1(scale > 0.0F ? 1.0F / scale : 0.0F);
  std::int8_t codes[16];
  for (std::int64_t d = 0; d < kv.key_dim; d += 16) {
    for (int i = 0; i < kParts; ++i) {
      const V code = mul(load(mean + d + i * kLanes), inverse);
      store_i8(codes + i * kLanes, max(min(code, set1(127.0F)), set1(-127.0F)));
    }
    std::memcpy(center + d, codes, 16);
  }
  std::memcpy(center + kv.key_dim, &scale, 4);
}

// k as int4 keys are rounded: rotated, without the center.
inline void center_keys(const KvLayer& kv, const std::uint8_t* center, const float* k, float* out) {
  std::copy_n(k, kv.head_dim, out);
  std::fill(out + kv.head_dim, out + kv.key_dim, 0.0F);
  const std::int64_t run = kv.rotation_dims();
  rotate_runs(out, kv.key_dim, run);
  const float factor = 1.0F / static_cast<float>(run);
  float scale;
  std::memcpy(&scale, center + kv.key_dim, 4);
  for (std::int64_t d = 0; d < kv.key_dim; ++d) {
    out[d] = out[d] * factor - scale * static_cast<float>(static_cast<std::int8_t>(center[d]));
  }
}

// One head's place in a block.
struct HeadSlot {
  std::uint8_t* keys;
  std::uint8_t* values;
  std::uint8_t* center;
  std::int64_t slot;
};

inline HeadSlot find_head(const KvLayer& kv, std::int64_t block, std::int64_t head, std::int64_t slot) {
  std::uint8_t* base = kv.base + block * kv.block_bytes;
  return {base + head * kv.key_head_bytes, base + kv.value_offset + head * kv.value_head_bytes,
          base + kv.center_offset + head * kv.center_head_bytes, slot};
}

template <KvDtype kDtype>
inline void store_keys(const KvLayer& kv, const HeadSlot& at, const float* k) {
  std::int8_t codes[kMaxKvHeadDim + 32];
  auto* scales = reinterpret_cast<std::uint16_t*>(at.keys + kv.key_head_bytes - kv_scale_bytes(kDtype)) + at.slot;
  quantize_head<kDtype>(k, has_center(kDtype) ? kv.key_dim : kv.head_dim, scales, codes);
  if constexpr (kDtype == KvDtype::kI4) {
    auto* words = reinterpret_cast<std::uint32_t*>(at.keys) + at.slot;
    for (std::int64_t d = 0; d < kv.key_dim; d += 8) words[d / 8 * kBlockTokens] = pack_nibbles(codes + d);
  } else {
    for (std::int64_t d = 0; d < kv.head_dim; ++d) {
      at.keys[d * kBlockTokens + at.slot] = static_cast<std::uint8_t>(codes[d]);
    }
  }
}

template <KvDtype kDtype>
inline void store_values(const KvLayer& kv, const HeadSlot& at, const float* v) {
  std::int8_t codes[kMaxKvHeadDim + 32];
  auto* scales = reinterpret_cast<std::uint16_t*>(at.values + kv.value_head_bytes - kv_scale_bytes(kDtype)) + at.slot;
  quantize_head<kDtype>(v, kv.head_dim, scales, codes);
  std::uint8_t* token = at.values + at.slot * kv_bytes(kDtype, kv.value_dim);
  if constexpr (kDtype == KvDtype::kI4) {
    std::fill_n(codes + kv.head_dim, 32, std::int8_t{0});
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
inline void store_floats(const KvLayer& kv, const HeadSlot& at, const float* k, const float* v) {
  using Element = std::conditional_t<kDtype == KvDtype::kF32, float, std::uint16_t>;
  auto* keys = reinterpret_cast<Element*>(at.keys) + at.slot;
  auto* values = reinterpret_cast<Element*>(at.values) + at.slot * kv.value_dim;
  for (std::int64_t d = 0; d < kv.head_dim; d += 16) {
    const std::int64_t n = std::min<std::int64_t>(16, kv.head_dim - d);
    Element rounded[16];
    round16<kDtype>(load16_first(k + d, n), rounded);
    for (std::int64_t i = 0; i < n; ++i) keys[(d + i) * kBlockTokens] = rounded[i];
    round16<kDtype>(load16_first(v + d, n), rounded);
    std::copy_n(rounded, n, values + d);
  }
}

template <KvDtype kDtype>
inline void store_head(const KvLayer& kv, const KvSlot& slot, std::int64_t head, const float* k, const float* v) {
  const HeadSlot at = find_head(kv, slot.block, head, slot.slot);
  if constexpr (has_center(kDtype)) {
    if (slot.slot == 0) {
      const HeadSlot before = find_head(kv, std::max<std::int64_t>(slot.block_before, 0), head, 0);
      make_center(kv, slot.block_before < 0 ? nullptr : before.keys, before.center, at.center);
    }
    float centered[kMaxKvHeadDim];
    center_keys(kv, at.center, k, centered);
    store_keys<kDtype>(kv, at, centered);
    store_values<kDtype>(kv, at, v);
  } else if constexpr (has_scale(kDtype)) {
    store_keys<kDtype>(kv, at, k);
    store_values<kDtype>(kv, at, v);
  } else {
    store_floats<kDtype>(kv, at, k, v);
  }
}

inline void store_kv_row(const KvLayer& kv, const KvSlot& slot, std::int64_t begin, std::int64_t end, const float* k,
                         const float* v) {
  for_kv_dtype(kv.dtype, [&](auto dtype) {
    for (std::int64_t h = begin; h < end; ++h) {
      store_head<decltype(dtype)::value>(kv, slot, h, k + h * kv.head_dim, v + h * kv.head_dim);
    }
  });
}

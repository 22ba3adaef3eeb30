// store_kv: rounds one token's keys and values to the cache's dtype. Compiled once per ISA inside its namespace; the
// rounding rule and the layout are in kv_layout.h.

inline constexpr float kMaxF16 = 65504.0F;

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

// Codes of x[0..n) for the given scale, without the code of 0, to `codes`; returns the squared error.
inline float round_codes(const float* x, std::int64_t n, float scale, float lowest, float highest, float* codes) {
  const V by = set1(scale);
  const V inverse = set1(scale != 0.0F ? 1.0F / scale : 0.0F);
  F32x16 error = zero16();
  for (std::int64_t d = 0; d < n; d += 16) {
    for (int i = 0; i < kParts; ++i) {
      const V a = load(x + d + i * kLanes);
      const V code = max(min(round(mul(a, inverse)), set1(highest)), set1(lowest));
      store(codes + d + i * kLanes, code);
      const V off = sub(a, mul(code, by));
      error.part[i] = add(error.part[i], mul(off, off));
    }
  }
  return sum_lanes(error);
}

// Codes of x[0..n) without the code of 0, for int8; writes the scale.
inline void code_int8(const float* x, std::int64_t n, std::uint16_t* scale_bits, float* codes) {
  V highest = zero();
  for (std::int64_t d = 0; d < n; d += kLanes) highest = max(abs(load(x + d)), highest);
  const float scale = round_to_f16(reduce_max(highest) / 127.0F, scale_bits);
  round_codes(x, n, scale, -127.0F, 127.0F, codes);
}

// The x of largest magnitude, the positive one of two.
inline float find_largest(const float* x, std::int64_t n) {
  V above = zero();
  V below = zero();
  for (std::int64_t d = 0; d < n; d += kLanes) {
    above = max(load(x + d), above);
    below = max(sub(zero(), load(x + d)), below);
  }
  const float highest = reduce_max(above);
  const float lowest = -reduce_max(below);
  return highest >= -lowest ? highest : lowest;
}

// The same for int4: the best of a few scales.
inline void code_int4(const float* x, std::int64_t n, int bits, std::uint16_t* scale_bits, float* codes) {
  const float largest = find_largest(x, n);
  const auto zero_at = static_cast<float>(zero_code(bits));
  const auto try_factor = [&](float factor, std::uint16_t* scale_tried, float* out) {
    const float scale = round_to_f16(factor * largest / -zero_at, scale_tried);
    return round_codes(x, n, scale, -zero_at, zero_at - 1.0F, out);
  };
  float least = try_factor(1.0F, scale_bits, codes);
  float tried[kMaxHeadDim];
  for (const float factor : {0.95F, 0.9F, 0.85F, 0.8F, 0.75F}) {
    std::uint16_t bits_tried;
    const float error = try_factor(factor, &bits_tried, tried);
    if (error < least) {
      least = error;
      *scale_bits = bits_tried;
      std::copy_n(tried, n, codes);
    }
  }
}

// One head's place in a block.
struct HeadSlot {
  std::uint8_t* keys;
  std::uint8_t* values;
  std::uint16_t* key_scale;
  std::uint16_t* value_scale;
  std::uint8_t* center;  // codes, then a float16 scale
  std::int64_t slot;
};

inline HeadSlot find_head(const KvLayer& kv, std::int64_t block, std::int64_t slot, std::int64_t head) {
  std::uint8_t* base = kv.base + block * kv.block_bytes;
  const std::int64_t scale_at = head * kv_scale_bytes(kv.dtype) + slot * 2;
  return {base + head * kv.key_head_bytes, base + kv.value_offset + head * kv.value_head_bytes,
          reinterpret_cast<std::uint16_t*>(base + kv.key_scale_offset + scale_at),
          reinterpret_cast<std::uint16_t*>(base + kv.value_scale_offset + scale_at),
          base + kv.center_offset + head * kv.center_head_bytes, slot};
}

// The center of a block as floats.
inline void read_center(const KvLayer& kv, const std::uint8_t* center, float* out) {
  std::uint16_t bits[kLanes] = {};
  std::memcpy(bits, center + kv.key_dim / 2, 2);
  float scale[kLanes];
  store(scale, load_f16(bits));
  for (std::int64_t d = 0; d < kv.key_dim; ++d) {
    const int byte = center[d / kUnitDims * 16 + d % 16];
    out[d] = scale[0] * static_cast<float>((d % kUnitDims < 16 ? byte & 15 : byte >> 4) - zero_code(4));
  }
}

// Writes a block's center from the first slot of the block before (null: it becomes 0).
inline void make_center(const KvLayer& kv, const HeadSlot* before, std::uint8_t* center) {
  float mean[kMaxHeadDim];
  float codes[kMaxHeadDim] = {};
  std::uint16_t scale_bits = 0;
  if (before != nullptr) {
    float token_scales[kBlockTokens];
    for (int i = 0; i < kParts; ++i) store(token_scales + i * kLanes, load_f16(before->key_scale + i * kLanes));
    read_center(kv, before->center, mean);
    for (std::int64_t d = 0; d < kv.key_dim; ++d) {
      const std::uint8_t* unit = before->keys + d / kUnitDims * unit_bytes(5);
      const std::int64_t step = d % kUnitDims / 4;
      float sum = 0.0F;
      for (std::int64_t j = 0; j < kBlockTokens; ++j) {
        const std::int64_t at = j * 4 + d % 4;
        const int low = unit[step % 4 * 64 + at] >> (step / 4 * 4) & 15;
        const int fifth = unit[256 + at] >> step & 1;
        sum = sum + token_scales[j] * static_cast<float>((low | fifth << 4) - zero_code(5));
      }
      mean[d] = mean[d] + sum * 0.0625F;
    }
    const float scale = round_to_f16(find_largest(mean, kv.key_dim) / -8.0F, &scale_bits);
    round_codes(mean, kv.key_dim, scale, -8.0F, 7.0F, codes);
  }
  for (std::int64_t i = 0; i < kv.key_dim / 2; ++i) {
    const float* pair = codes + i / 16 * kUnitDims + i % 16;
    const int low = static_cast<int>(pair[0]) + zero_code(4);
    const int high = static_cast<int>(pair[16]) + zero_code(4);
    center[i] = static_cast<std::uint8_t>(low | high << 4);
  }
  std::memcpy(center + kv.key_dim / 2, &scale_bits, 2);
}

// The codes of x [head_dim], padded to `dim`, rotated, and less the center unless null; writes the scale.
template <KvDtype kDtype>
inline void code_head(const KvLayer& kv, const float* x, std::int64_t dim, int bits, const std::uint8_t* center,
                      std::uint16_t* scale_bits, std::uint8_t* codes) {
  float turned[kMaxHeadDim];
  float rounded[kMaxHeadDim];
  std::copy_n(x, kv.head_dim, turned);
  std::fill(turned + kv.head_dim, turned + dim, 0.0F);
  rotate_runs(turned, dim);
  const V factor = set1(1.0F / static_cast<float>(rotation_dims(dim)));
  for (std::int64_t d = 0; d < dim; d += kLanes) store(turned + d, mul(load(turned + d), factor));
  if constexpr (has_center(kDtype)) {
    if (center != nullptr) {
      read_center(kv, center, rounded);
      for (std::int64_t d = 0; d < dim; d += kLanes) store(turned + d, sub(load(turned + d), load(rounded + d)));
    }
    code_int4(turned, dim, bits, scale_bits, rounded);
  } else {
    code_int8(turned, dim, scale_bits, rounded);
  }
  for (std::int64_t d = 0; d < dim; d += kLanes) {
    std::int8_t bytes[kLanes];
    store_i8(bytes, load(rounded + d));
    for (int i = 0; i < kLanes; ++i) codes[d + i] = static_cast<std::uint8_t>(bytes[i] + zero_code(bits));
  }
}

template <KvDtype kDtype>
inline void store_key_codes(const KvLayer& kv, const HeadSlot& at, const float* k) {
  constexpr int kBits = key_bits(kDtype);
  std::uint8_t all[kMaxHeadDim];
  code_head<kDtype>(kv, k, kv.key_dim, kBits, at.center, at.key_scale, all);
  for (std::int64_t u = 0; u * kUnitDims < kv.key_dim; ++u) {
    const std::uint8_t* codes = all + u * kUnitDims;
    std::uint8_t* unit = at.keys + u * unit_bytes(kBits) + at.slot * 4;
    if constexpr (kBits == 8) {
      for (std::int64_t i = 0; i < 8; ++i) std::copy_n(codes + i * 4, 4, unit + i * 64);
      continue;
    }
    std::uint8_t fifth[4] = {};
    for (std::int64_t i = 0; i < 16; ++i) {
      unit[i / 4 * 64 + i % 4] = static_cast<std::uint8_t>((codes[i] & 15) | codes[16 + i] << 4);
    }
    for (std::int64_t i = 0; i < kUnitDims; ++i) {
      fifth[i % 4] = static_cast<std::uint8_t>(fifth[i % 4] | codes[i] >> 4 << (i / 4));
    }
    std::copy_n(fifth, 4, unit + 256);
  }
}

template <KvDtype kDtype>
inline void store_value_codes(const KvLayer& kv, const HeadSlot& at, const float* v) {
  constexpr int kBits = value_bits(kDtype);
  std::uint8_t all[kMaxHeadDim];
  code_head<kDtype>(kv, v, kv.value_dim, kBits, nullptr, at.value_scale, all);
  for (std::int64_t u = 0; u * kUnitDims < kv.value_dim; ++u) {
    const std::uint8_t* codes = all + u * kUnitDims;
    std::uint8_t* unit = at.values + u * unit_bytes(kBits) + at.slot / 4 * 64 + at.slot % 4;
    for (std::int64_t i = 0; i < 16; ++i) {
      if constexpr (kBits == 4) {
        unit[i * 4] = static_cast<std::uint8_t>(codes[i] | codes[16 + i] << 4);
      } else {
        unit[i * 4] = codes[i];
        unit[256 + i * 4] = codes[16 + i];
      }
    }
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
  const HeadSlot at = find_head(kv, slot.block, slot.slot, head);
  if constexpr (is_coded(kDtype)) {
    if (has_center(kDtype) && slot.slot == 0) {
      const HeadSlot before = find_head(kv, std::max<std::int64_t>(slot.block_before, 0), 0, head);
      make_center(kv, slot.block_before < 0 ? nullptr : &before, at.center);
    }
    store_key_codes<kDtype>(kv, at, k);
    store_value_codes<kDtype>(kv, at, v);
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

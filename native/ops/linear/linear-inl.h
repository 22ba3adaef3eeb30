// Bodies of linear and quantize, compiled once per ISA inside its namespace. Contract: ops/linear/linear.h.

// --- activations -----------------------------------------------------------------------------------------------------

// Where group `unit` of a token lies, counted in groups.
inline std::int64_t find_acts(const QuantActs& a, std::int64_t token, std::int64_t unit) {
  const std::int64_t first = token / kActTokens * kActTokens * (a.cols / kUnitCols);
  return first + unit * a.block_tokens + token % kActTokens;
}

// Rounds 16 floats to int8 at q and returns their sum, integral unless a lane is NaN.
inline float quantize16(const F32x16& x, V inverse, std::int8_t* q) {
  V sum = zero();
  for (int i = 0; i < kParts; ++i) {
    const V rounded = round(mul(x.part[i], inverse));
    store_i8(q + i * kLanes, rounded);
    sum = add(sum, rounded);
  }
  return reduce_integral_sum(sum);
}

inline void quantize_row(const float* x, std::int64_t token, const QuantActs& out) {
  const std::int64_t first_at = find_acts(out, token, 0);
  for (std::int64_t g = 0; g < out.cols / 32; ++g) {
    const std::int64_t at = first_at + g * out.block_tokens;
    std::int8_t* q = out.q + at * 32;
    const F32x16 low = load16(x + g * 32);
    const F32x16 high = load16(x + g * 32 + 16);
    const F32x16 magnitude = map16([&](int i) { return max(abs(low.part[i]), abs(high.part[i])); });
    const float amax = max_lanes(magnitude);
    // Below, the quotient would be infinite or close to it; the group then counts as zeros.
    const float inverse = amax > 1e-36F ? 127.0F / amax : 0.0F;
    const float low_sum = quantize16(low, set1(inverse), q);
    const float high_sum = quantize16(high, set1(inverse), q + 16);
    // NaN and infinity in a row must come out as NaN, not as some number.
    const bool is_finite = std::abs(low_sum + high_sum) < 1e6F && amax <= std::numeric_limits<float>::max();
    const float scale = is_finite ? amax / 127.0F : std::numeric_limits<float>::quiet_NaN();
    const std::int32_t sum_first = is_finite ? static_cast<std::int32_t>(low_sum) : 0;
    const std::int32_t sum_second = is_finite ? static_cast<std::int32_t>(high_sum) : 0;
    out.scale[at] = scale;
    out.sum16[2 * at] = sum_first;
    out.sum16[2 * at + 1] = sum_second;
    out.sum32[at] = sum_first + sum_second;
    out.scaled_sum16[2 * at] = scale * static_cast<float>(sum_first);
    out.scaled_sum16[2 * at + 1] = scale * static_cast<float>(sum_second);
    out.scaled_sum32[at] = scale * static_cast<float>(sum_first + sum_second);
  }
}

// --- affine weights --------------------------------------------------------------------------------------------------

// Scale (or minimum) vector of group `group`, rows of half `half`.
template <ScaleKind kKind>
inline V load_scale(const std::uint8_t* part, const std::uint16_t* super, std::int64_t group, int groups_per_super,
                    int half) {
  if constexpr (kKind == ScaleKind::kF16) {
    return load_f16(reinterpret_cast<const std::uint16_t*>(part) + group * 16 + half * kLanes);
  } else {
    const V small = load_i8(reinterpret_cast<const std::int8_t*>(part) + group * 16 + half * kLanes);
    return mul(load_f16(super + group / groups_per_super * 16 + half * kLanes), small);
  }
}

// Writes (or adds) kLanes results of one token; `row` is the first output row of the half tile.
inline void store_result(const LinearArgs& args, std::int64_t token, std::int64_t row, V acc) {
  const std::int64_t num_rows = args.weight->rows();
  float* y = args.y + token * num_rows + row;
  const std::int64_t n = num_rows - row;
  if (n >= kLanes) {
    store(y, args.accumulate ? add(load(y), acc) : acc);
    return;
  }
  float tmp[kLanes];
  store(tmp, acc);
  for (std::int64_t i = 0; i < n; ++i) y[i] = args.accumulate ? y[i] + tmp[i] : tmp[i];
}

// Runs `kernel` over tokens [token, end) in blocks of kTokens, then of half as many, down to one.
template <int kTokens, typename Kernel>
inline void run_blocks(const Kernel& kernel, std::int64_t token, std::int64_t end) {
  for (; token + kTokens <= end; token += kTokens) kernel.template run<kTokens>(token);
  if constexpr (kTokens > 1) run_blocks<kTokens / 2>(kernel, token, end);
}

// The same where tokens must not lie in two blocks of activations.
template <typename Kernel>
inline void run_act_blocks(const Kernel& kernel, std::int64_t token, std::int64_t end) {
  while (token < end) {
    const std::int64_t stop = std::min(end, (token / kActTokens + 1) * kActTokens);
    run_blocks<kMaxTokenBlock>(kernel, token, stop);
    token = stop;
  }
}

// Activations that stay in the second-level cache while tiles of weights pass over them.
inline constexpr std::int64_t kLinearChunkBytes = 256 * 1024;

// Units whose unpacked codes are kept for all token blocks of a tile: 8192 inputs, 128 KB of the second-level cache.
inline constexpr std::int64_t kMaxStripUnits = 256;

// kLanes rows of one tile of an affine weight. With kHasStrip the codes come unpacked from `strip`, [units, 8].
template <int kFormat, bool kHasStrip>
struct AffineRows {
  static constexpr const PackedFormat& kF = kFormats[kFormat];
  static constexpr int kBits = kF.bits;
  static constexpr int kGroup = kF.group;
  static constexpr int kGroupsPerUnit = kUnitCols / kGroup;
  static constexpr int kGroupsPerSuper = kSuperCols / kGroup;
  static constexpr int kZero = kF.zero_point - kCodeOffset<kBits>;

  const LinearArgs& args;
  std::int64_t tile;
  int half;
  const Code* strip;

  // One group of one unit for one token, whose activations are at `at`. `kG` is the group within the unit.
  template <int kG>
  static inline V add_group(V acc, const Code (&codes)[8], V scale, V min, const QuantActs& a, std::int64_t at) {
    constexpr int kSteps = 8 / kGroupsPerUnit;
    const std::int64_t at_group = at * kGroupsPerUnit + kG;
    const std::int32_t* sums = kGroup == 32 ? a.sum32 : a.sum16;
    const IV start = kZero == 0 ? iset1(0) : iset1(-kZero * sums[at_group]);
    const IV product = dot<kBits, kG * kSteps, (kG + 1) * kSteps>(start, codes, a.q + at * kUnitCols);
    acc = fma(to_f32(product), mul(scale, set1(a.scale[at])), acc);
    if constexpr (kF.has_min) {
      const float* scaled = kGroup == 32 ? a.scaled_sum32 : a.scaled_sum16;
      acc = fma(min, set1(scaled[at_group]), acc);
    }
    return acc;
  }

  template <int kTokens>
  inline void run(std::int64_t token) const {
    const PackedWeight& w = *args.weight;
    const QuantActs& a = *args.quant;
    const std::int64_t units = w.cols() / kUnitCols;
    const std::uint8_t* codes_at = w.codes(tile);
    const std::uint8_t* scales_at = w.scales(tile);
    const std::uint8_t* mins_at = w.mins(tile);
    const std::uint16_t* super_at = w.super_scales(tile);
    const std::uint16_t* super_min_at = w.super_mins(tile);
    V acc[kTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) acc[t] = zero();
    std::int64_t at = find_acts(a, token, 0);
    for (std::int64_t unit = 0; unit < units; ++unit, at += a.block_tokens) {
      Code codes[8];
      if constexpr (kHasStrip) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) codes[i] = strip[unit * 8 + i];
      } else {
        load_codes<kBits>(codes_at + unit * 64 * kBits, half, codes);
      }
      V scale[kGroupsPerUnit];
      V min[kGroupsPerUnit];
      for (int g = 0; g < kGroupsPerUnit; ++g) {
        const std::int64_t group = unit * kGroupsPerUnit + g;
        scale[g] = load_scale<kF.scale_kind>(scales_at, super_at, group, kGroupsPerSuper, half);
        min[g] = zero();
        if constexpr (kF.has_min) {
          min[g] = load_scale<kF.scale_kind>(mins_at, super_min_at, group, kGroupsPerSuper, half);
        }
      }
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) {
        acc[t] = add_group<0>(acc[t], codes, scale[0], min[0], a, at + t);
        if constexpr (kGroupsPerUnit == 2) {
          acc[t] = add_group<1>(acc[t], codes, scale[1], min[1], a, at + t);
        }
      }
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) store_result(args, token + t, tile * kTileRows + half * kLanes, acc[t]);
  }
};

template <int kFormat>
struct Affine {
  static constexpr int kBits = kFormats[kFormat].bits;

  // Many tokens: the codes are unpacked once for all of them.
  static void run_with_strip(const LinearArgs& args, std::int64_t tile, int half, std::int64_t token_begin,
                             std::int64_t token_end) {
    Code strip[kMaxStripUnits * 8];
    const std::int64_t units = args.weight->cols() / kUnitCols;
    for (std::int64_t unit = 0; unit < units; ++unit) {
      Code codes[8];
      load_codes<kBits>(args.weight->codes(tile) + unit * 64 * kBits, half, codes);
      for (int i = 0; i < 8; ++i) strip[unit * 8 + i] = codes[i];
    }
    run_act_blocks(AffineRows<kFormat, true>{args, tile, half, strip}, token_begin, token_end);
  }

  static void run(const LinearArgs& args, std::int64_t tile_begin, std::int64_t tile_end, std::int64_t token_begin,
                  std::int64_t token_end) {
    for (std::int64_t tile = tile_begin; tile < tile_end; ++tile) {
      for (int half = 0; half < 16 / kLanes; ++half) {
        if constexpr (kMinStripTokens > 0) {
          if (token_end - token_begin >= kMinStripTokens && args.weight->cols() / kUnitCols <= kMaxStripUnits) {
            run_with_strip(args, tile, half, token_begin, token_end);
            continue;
          }
        }
        run_act_blocks(AffineRows<kFormat, false>{args, tile, half, nullptr}, token_begin, token_end);
      }
    }
  }
};

// --- float weights ---------------------------------------------------------------------------------------------------

// kLanes rows of one tile of a float weight.
template <int kFormat>
struct FloatRows {
  const LinearArgs& args;
  std::int64_t tile;
  int half;

  static inline V load_weight(const std::uint8_t* codes, std::int64_t at) {
    constexpr BlockType kType = kFormats[kFormat].type;
    if constexpr (kType == BlockType::kF32) {
      return load(reinterpret_cast<const float*>(codes) + at);
    } else if constexpr (kType == BlockType::kF16) {
      return load_f16(reinterpret_cast<const std::uint16_t*>(codes) + at);
    } else {
      return load_bf16(reinterpret_cast<const std::uint16_t*>(codes) + at);
    }
  }

  template <int kTokens>
  inline void run(std::int64_t token) const {
    const std::int64_t cols = args.weight->cols();
    const std::uint8_t* codes = args.weight->codes(tile);
    const float* x = args.x + token * cols;
    V acc[kTokens];
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) acc[t] = zero();
    for (std::int64_t k = 0; k < cols; ++k) {
      const V w = load_weight(codes, k * 16 + half * kLanes);
#pragma GCC unroll 16
      for (int t = 0; t < kTokens; ++t) acc[t] = fma(w, set1(x[t * cols + k]), acc[t]);
    }
#pragma GCC unroll 16
    for (int t = 0; t < kTokens; ++t) store_result(args, token + t, tile * kTileRows + half * kLanes, acc[t]);
  }
};

template <int kFormat>
struct Float {
  static void run(const LinearArgs& args, std::int64_t tile_begin, std::int64_t tile_end, std::int64_t token_begin,
                  std::int64_t token_end) {
    for (std::int64_t tile = tile_begin; tile < tile_end; ++tile) {
      for (int half = 0; half < 16 / kLanes; ++half) {
        run_blocks<8>(FloatRows<kFormat>{args, tile, half}, token_begin, token_end);
      }
    }
  }
};

// Linear of many rows on AMX tiles, compiled inside the namespace of the amx target. Contract: ops/linear/linear.h.
//
// One tile product is exact integers of 16 tokens x 16 output rows over one group of 32 inputs, which then go through
// the same multiplications in the same order as everywhere. Zero points are taken off the codes before: a byte holds
// code - zero_point of every format.

// Units and tokens whose work is done before the next units are looked at: their unpacked codes, 16 KB, and one block's
// activations, as many, stay in the first-level cache.
inline constexpr std::int64_t kStripUnits = 32;
inline constexpr std::int64_t kStripTokens = 512;
// From how many tokens on tiles pay: fewer wait for weights, which the vector code reads while it computes
// (docs/log.d/amx.md).
inline constexpr std::int64_t kMinTiledTokens = 48;
inline constexpr int kTileTokens = 16;
inline constexpr int kUnitBytes = kTileRows * kUnitCols;
static_assert(kTileTokens == kActTokens, "a tile takes the activations of one block");

// Shapes of the tile registers (Intel SDM vol. 1, 18.2): 0 and 1 hold sums, 2 and 3 activations, 4 and 5 codes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, kUnitCols, kUnitCols, 64, 64};
  std::uint8_t num_rows[16] = {16, 16, kTileTokens, kTileTokens, kUnitCols / 4, kUnitCols / 4};
};
static_assert(sizeof(TileConfig) == 64);

// Some units of one tile of weights as the products and the float code read them.
struct Strip {
  std::int64_t first_unit = 0;
  std::int64_t num_units = 0;
  alignas(64) std::int8_t codes[kStripUnits * kUnitBytes];  // [units, 8, 16 rows, 4]
  alignas(64) float scale[kStripUnits * kTileRows];
  alignas(64) float min[kStripUnits * kTileRows];
};

template <int kFormat>
struct TiledLinear {
  static constexpr const PackedFormat& kF = kFormats[kFormat];
  static_assert(kF.group == kUnitCols && kLanes == kTileRows);

  static inline void unpack(const PackedWeight& weight, std::int64_t tile, Strip& out) {
    constexpr int kGroupsPerSuper = kSuperCols / kUnitCols;
    const __m512i zero_point = _mm512_set1_epi8(static_cast<char>(kF.zero_point));
    for (std::int64_t i = 0; i < out.num_units; ++i) {
      const std::int64_t unit = out.first_unit + i;
      Code codes[8];
      load_codes<kF.bits>(weight.codes(tile) + unit * 64 * kF.bits, 0, codes);
#pragma GCC unroll 8
      for (int step = 0; step < 8; ++step) {
        _mm512_store_si512(out.codes + i * kUnitBytes + step * 64, _mm512_sub_epi8(codes[step].v, zero_point));
      }
      store(out.scale + i * kTileRows, load_scale<kF.scale_kind>(weight.scales(tile), weight.super_scales(tile), unit,
                                                                 kGroupsPerSuper, 0));
      if constexpr (kF.has_min) {
        store(out.min + i * kTileRows,
              load_scale<kF.scale_kind>(weight.mins(tile), weight.super_mins(tile), unit, kGroupsPerSuper, 0));
      }
    }
    // The tile loads are opaque to the compiler: everything must be in memory before them.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  // sums[16 tokens][16 rows] of one unit or of two, one after the other.
  static inline void multiply_units(const std::int8_t* q, const std::int8_t* codes, bool is_pair, std::int32_t* sums) {
    _tile_zero(0);
    _tile_loadd(2, q, kUnitCols);
    _tile_loadd(4, codes, 64);
    _tile_dpbssd(0, 2, 4);
    if (is_pair) {
      _tile_zero(1);
      _tile_loadd(3, q + kUnitBytes, kUnitCols);
      _tile_loadd(5, codes + kUnitBytes, 64);
      _tile_dpbssd(1, 3, 5);
    }
    _tile_stored(0, sums, 64);
    if (is_pair) _tile_stored(1, sums + 256, 64);
  }

  static inline void add_unit(V (&acc)[kTileTokens], const std::int32_t* sums, V scale, V min, const QuantActs& a,
                              std::int64_t at) {
#pragma GCC unroll 16
    for (int t = 0; t < kTileTokens; ++t) {
      const V product = to_f32({_mm512_load_si512(sums + t * kTileRows)});
      acc[t] = fma(product, mul(scale, set1(a.scale[at + t])), acc[t]);
      if constexpr (kF.has_min) acc[t] = fma(min, set1(a.scaled_sum32[at + t]), acc[t]);
    }
  }

  // Adds the strip's groups to sums of 16 tokens, whose activations start at `at`. The products of the next two units
  // run while floats are made of the last two.
  static inline void add_strip(V (&acc)[kTileTokens], const Strip& strip, const QuantActs& a, std::int64_t at) {
    const std::int8_t* q = a.q + at * kUnitCols;
    const std::int64_t units = strip.num_units;
    alignas(64) std::int32_t sums[2][512];
    multiply_units(q, strip.codes, units > 1, sums[0]);
    for (std::int64_t unit = 0; unit < units; unit += 2) {
      const std::int32_t* ready = sums[unit / 2 % 2];
      const std::int64_t next = unit + 2;
      if (next < units) {
        multiply_units(q + next * kUnitBytes, strip.codes + next * kUnitBytes, next + 1 < units, sums[next / 2 % 2]);
      }
      const std::int64_t stop = std::min(next, units);
      for (std::int64_t u = unit; u < stop; ++u) {
        const V min = kF.has_min ? load(strip.min + u * kTileRows) : zero();
        add_unit(acc, ready + (u - unit) * 256, load(strip.scale + u * kTileRows), min, a, at + u * kTileTokens);
      }
    }
  }

  static void run(const LinearArgs& args, std::int64_t tile_begin, std::int64_t tile_end, std::int64_t token_begin,
                  std::int64_t token_end) {
    // Blocks of 16 tokens [begin, end); what is before and behind goes to the vector code.
    const std::int64_t begin = (token_begin + kTileTokens - 1) / kTileTokens * kTileTokens;
    const std::int64_t end = token_end / kTileTokens * kTileTokens;
    const LinearKernel run_vectors = avx512_kernels().linear[kFormat];
    if (end - begin < kMinTiledTokens) {
      run_vectors(args, tile_begin, tile_end, token_begin, token_end);
      return;
    }
    const TileConfig config;
    _tile_loadconfig(&config);
    for (std::int64_t tile = tile_begin; tile < tile_end; ++tile) {
      for (std::int64_t token = begin; token < end; token += kStripTokens) {
        run_tile(args, tile, token, std::min(token + kStripTokens, end));
      }
    }
    // Tiles belong to the thread; released, they cost a context switch nothing.
    _tile_release();
    if (token_begin < begin) run_vectors(args, tile_begin, tile_end, token_begin, begin);
    if (end < token_end) run_vectors(args, tile_begin, tile_end, end, token_end);
  }

  static void run_tile(const LinearArgs& args, std::int64_t tile, std::int64_t begin, std::int64_t end) {
    const std::int64_t units = args.weight->cols() / kUnitCols;
    Strip strip;
    alignas(64) float partial[kStripTokens * kTileRows];
    for (strip.first_unit = 0; strip.first_unit < units; strip.first_unit += kStripUnits) {
      strip.num_units = std::min(kStripUnits, units - strip.first_unit);
      unpack(*args.weight, tile, strip);
      const bool is_first = strip.first_unit == 0;
      const bool is_last = strip.first_unit + strip.num_units == units;
      for (std::int64_t token = begin; token < end; token += kTileTokens) {
        float* sums = partial + (token - begin) * kTileRows;
        V acc[kTileTokens];
#pragma GCC unroll 16
        for (int t = 0; t < kTileTokens; ++t) acc[t] = is_first ? zero() : load(sums + t * kTileRows);
        add_strip(acc, strip, *args.quant, find_acts(*args.quant, token, strip.first_unit));
        if (is_last) {
#pragma GCC unroll 16
          for (int t = 0; t < kTileTokens; ++t) store_result(args, token + t, tile * kTileRows, acc[t]);
        } else {
#pragma GCC unroll 16
          for (int t = 0; t < kTileTokens; ++t) store(sums + t * kTileRows, acc[t]);
        }
      }
    }
  }
};

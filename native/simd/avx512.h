// AVX-512 (F, BW, VL, DQ, VNNI): one 512-bit register is a vector of 16 lanes. See simd/README.md for the operations.
// Shared by avx512 and amx: included inside the ISA's namespace, hence no include guard and no includes of its own.

inline constexpr int kLanes = 16;
// Rows that a register-blocked loop may hold: 32 registers.
inline constexpr int kMaxTokenBlock = 16;
// Unpacking once for 16 tokens is cheap enough: keeping the codes gained nothing (docs/log.md, 2026-11-29).
inline constexpr std::int64_t kMinStripTokens = 0;
inline constexpr int kScoreRows = 12;
inline constexpr int kScoreSums = 12;
inline constexpr int kValueRows = 6;
inline constexpr int kValueVecs = 4;
inline constexpr int kValueTilesAhead = 4;
// Of coded keys and values: rows at once, and how many blocks ahead they are prefetched.
inline constexpr int kCodedScoreRows = 12;
inline constexpr int kCodedValueRows = 4;
inline constexpr int kCodedTilesAhead = 8;

struct V {
  __m512 v;
};
struct IV {
  __m512i v;
};

inline V zero() { return {_mm512_setzero_ps()}; }
inline V set1(float x) { return {_mm512_set1_ps(x)}; }
inline V load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, V a) { _mm512_storeu_ps(p, a.v); }
inline V add(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
inline V sub(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline V mul(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline V div(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
inline V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline V max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
inline V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
inline V abs(V a) { return {_mm512_abs_ps(a.v)}; }
inline V round(V a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a < b ? x : y, lane by lane.
inline V select_lt(V a, V b, V x, V y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
inline V iota() {
  return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
// 2^a for integral a in [-126, 127].
inline V pow2(V a) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(a.v), _mm512_set1_epi32(127)), 23))};
}
inline V load_f16(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_f16(std::uint16_t* p, V a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline V load_bf16(const std::uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline V load_i8(const std::int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// Rounds to nearest even and stores the low byte of each lane; lanes must lie in [-128, 127].
inline void store_i8(std::int8_t* p, V a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

// Maximum, and sum of integral lanes: exact, so the order of lanes does not matter.
inline float reduce_max(V a) { return _mm512_reduce_max_ps(a.v); }
inline float reduce_integral_sum(V a) { return _mm512_reduce_add_ps(a.v); }
// Sum over the lanes by halves: lane i with lane i+8, then +4, +2, +1.
inline float sum_halves(V a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline IV iset1(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
inline V to_f32(IV a) { return {_mm512_cvtepi32_ps(a.v)}; }

// --- codes: one register per step of 4 inputs x kLanes rows, unsigned bytes ----------------------------------------
struct Code {
  __m512i v;
};

// Codes are stored unsigned; here they are used as they are.
template <int kBits>
inline constexpr int kCodeOffset = 0;

inline __m512i load_line(const std::uint8_t* p) { return _mm512_loadu_si512(p); }

template <int kBits>
inline void load_codes(const std::uint8_t* p, int /*half*/, Code (&c)[8]) {
  if constexpr (kBits == 8) {
    for (int i = 0; i < 8; ++i) c[i].v = load_line(p + i * 64);
    return;
  }
  constexpr bool kHasFour = (kBits & 4) != 0;
  constexpr bool kHasTwo = (kBits & 2) != 0;
  constexpr bool kHasOne = (kBits & 1) != 0;
  if constexpr (kHasFour) {
    const __m512i mask = _mm512_set1_epi8(0x0f);
    for (int i = 0; i < 4; ++i) {
      const __m512i line = load_line(p + i * 64);
      c[i].v = _mm512_and_si512(line, mask);
      c[i + 4].v = _mm512_and_si512(_mm512_srli_epi16(line, 4), mask);
    }
  }
  if constexpr (kHasTwo) {
    const std::uint8_t* q = p + (kHasFour ? 256 : 0);
    constexpr int kShift = kHasFour ? 4 : 0;
    const __m512i mask = _mm512_set1_epi8(3 << kShift);
    for (int i = 0; i < 2; ++i) {
      const __m512i line = load_line(q + i * 64);
      for (int b = 0; b < 4; ++b) {
        const int right = 2 * b - kShift;
        const __m512i moved =
            right >= 0 ? _mm512_srl_epi16(line, _mm_cvtsi32_si128(right)) : _mm512_sll_epi16(line, _mm_cvtsi32_si128(-right));
        const __m512i bits = _mm512_and_si512(moved, mask);
        const int step = i + 2 * b;
        c[step].v = kHasFour ? _mm512_or_si512(c[step].v, bits) : bits;
      }
    }
  }
  if constexpr (kHasOne) {
    const std::uint8_t* q = p + (kHasFour ? 256 : 0) + (kHasTwo ? 128 : 0);
    constexpr int kShift = (kHasFour ? 4 : 0) + (kHasTwo ? 2 : 0) == 6 ? 6 : (kHasFour ? 4 : 2);
    const __m512i mask = _mm512_set1_epi8(1 << kShift);
    const __m512i line = load_line(q);
    for (int b = 0; b < 8; ++b) {
      const int right = b - kShift;
      const __m512i moved =
          right >= 0 ? _mm512_srl_epi16(line, _mm_cvtsi32_si128(right)) : _mm512_sll_epi16(line, _mm_cvtsi32_si128(-right));
      c[b].v = _mm512_or_si512(c[b].v, _mm512_and_si512(moved, mask));
    }
  }
}

// acc + sum over steps kFrom..kTo-1 of code x activation: exact in 32 bits.
template <int kBits, int kFrom, int kTo>
inline IV dot(IV acc, const Code (&c)[8], const std::int8_t* a) {
#pragma GCC unroll 8
  for (int i = kFrom; i < kTo; ++i) {
    // GCC 12 does not fold the broadcast of _mm512_dpbusd_epi32 into the instruction: 8 more of them per dot product.
    using Bytes = const std::int8_t[4];
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc.v) : "v"(c[i].v), "m"(*reinterpret_cast<Bytes*>(a + i * 4)));
  }
  return acc;
}

// The same for callers whose `a` starts at step kFrom.
template <int kBits, int kFrom, int kTo>
inline IV dot_chain(IV acc, const Code (&c)[8], const std::int8_t* a) {
#pragma GCC unroll 8
  for (int i = kFrom; i < kTo; ++i) {
    using Bytes = const std::int8_t[4];
    const auto* four = reinterpret_cast<Bytes*>(a + (i - kFrom) * 4);
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc.v) : "v"(c[i].v), "m"(*four));
  }
  return acc;
}

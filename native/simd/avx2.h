// AVX2 with FMA and F16C: one 256-bit register is a vector of 8 lanes. See simd/README.md for the operations.
//
// Shared by avx2 and avx_vnni: what multiplies codes (`IV Code kCodeOffset dot`) comes from dot_maddubs.h or
// dot_vnni256.h, included before. All of them are included inside the ISA's namespace, hence no include guards and no
// includes of their own.

inline constexpr int kLanes = 8;
// Rows that a register-blocked loop may hold: 16 registers.
inline constexpr int kMaxTokenBlock = 4;
inline constexpr std::int64_t kMinStripTokens = 32;
inline constexpr int kScoreRows = 6;
inline constexpr int kScoreSums = 4;
inline constexpr int kValueRows = 3;
inline constexpr int kValueVecs = 4;
inline constexpr int kValueTilesAhead = 2;
// Of coded keys and values: rows at once, and how many blocks ahead they are prefetched.
inline constexpr int kCodedScoreRows = 4;
inline constexpr int kCodedValueRows = 2;
inline constexpr int kCodedTilesAhead = 8;

struct V {
  __m256 v;
};

inline V zero() { return {_mm256_setzero_ps()}; }
inline V set1(float x) { return {_mm256_set1_ps(x)}; }
inline V load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, V a) { _mm256_storeu_ps(p, a.v); }
inline V add(V a, V b) { return {_mm256_add_ps(a.v, b.v)}; }
inline V sub(V a, V b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline V mul(V a, V b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline V div(V a, V b) { return {_mm256_div_ps(a.v, b.v)}; }
inline V fma(V a, V b, V c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline V max(V a, V b) { return {_mm256_max_ps(a.v, b.v)}; }
inline V min(V a, V b) { return {_mm256_min_ps(a.v, b.v)}; }
inline V abs(V a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0F), a.v)}; }
inline V round(V a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a < b ? x : y, lane by lane.
inline V select_lt(V a, V b, V x, V y) {
  return {_mm256_blendv_ps(y.v, x.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
inline V iota() { return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7)}; }
// 2^a for integral a in [-126, 127].
inline V pow2(V a) {
  return {_mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(a.v), _mm256_set1_epi32(127)), 23))};
}
inline V load_f16(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline void store_f16(std::uint16_t* p, V a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline V load_bf16(const std::uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
inline V load_i8(const std::int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
// Rounds to nearest even and stores one byte per lane; lanes must lie in [-128, 127].
inline void store_i8(std::int8_t* p, V a) {
  const __m256i wide = _mm256_cvtps_epi32(a.v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

// Maximum, and sum of integral lanes: exact, so the order of lanes does not matter.
inline float reduce_max(V a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
inline float reduce_integral_sum(V a) {
  __m128 m = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  m = _mm_add_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_add_ss(m, _mm_movehdup_ps(m)));
}
// Sum over the lanes by halves: lane i with lane i+4, then +2, +1.
inline float sum_halves(V a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline IV iset1(std::int32_t x) { return {_mm256_set1_epi32(x)}; }
inline V to_f32(IV a) { return {_mm256_cvtepi32_ps(a.v)}; }

// --- codes: one register per step of 4 inputs x kLanes rows ----------------------------------------------------------

inline __m256i load_line(const std::uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

inline __m256i shift16(__m256i line, int right) {
  return right >= 0 ? _mm256_srl_epi16(line, _mm_cvtsi32_si128(right)) : _mm256_sll_epi16(line, _mm_cvtsi32_si128(-right));
}

template <int kBits>
inline void load_codes(const std::uint8_t* tile, int half, Code (&c)[8]) {
  const std::uint8_t* p = tile + half * 32;
  if constexpr (kBits == 8) {
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(kCodeOffset<8>));
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) c[i].v = _mm256_xor_si256(load_line(p + i * 64), flip);
    return;
  }
  constexpr bool kHasFour = (kBits & 4) != 0;
  constexpr bool kHasTwo = (kBits & 2) != 0;
  constexpr bool kHasOne = (kBits & 1) != 0;
  if constexpr (kHasFour) {
    const __m256i mask = _mm256_set1_epi8(0x0f);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i line = load_line(p + i * 64);
      c[i].v = _mm256_and_si256(line, mask);
      c[i + 4].v = _mm256_and_si256(_mm256_srli_epi16(line, 4), mask);
    }
  }
  if constexpr (kHasTwo) {
    const std::uint8_t* q = p + (kHasFour ? 256 : 0);
    constexpr int kShift = kHasFour ? 4 : 0;
    const __m256i mask = _mm256_set1_epi8(3 << kShift);
    for (int i = 0; i < 2; ++i) {
      const __m256i line = load_line(q + i * 64);
      for (int b = 0; b < 4; ++b) {
        const __m256i bits = _mm256_and_si256(shift16(line, 2 * b - kShift), mask);
        const int step = i + 2 * b;
        c[step].v = kHasFour ? _mm256_or_si256(c[step].v, bits) : bits;
      }
    }
  }
  if constexpr (kHasOne) {
    const std::uint8_t* q = p + (kHasFour ? 256 : 0) + (kHasTwo ? 128 : 0);
    constexpr int kShift = (kHasFour ? 4 : 0) + (kHasTwo ? 2 : 0) == 6 ? 6 : (kHasFour ? 4 : 2);
    const __m256i mask = _mm256_set1_epi8(1 << kShift);
    const __m256i line = load_line(q);
    for (int b = 0; b < 8; ++b) {
      c[b].v = _mm256_or_si256(c[b].v, _mm256_and_si256(shift16(line, b - kShift), mask));
    }
  }
}

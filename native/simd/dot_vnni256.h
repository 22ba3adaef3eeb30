// Codes times activations by the 256-bit vpdpbusd. Included before avx2.h, which says how.

struct IV {
  __m256i v;
};
// One register per step of 4 inputs x 8 rows.
struct Code {
  __m256i v;
};

// Codes are unsigned, as vpdpbusd takes them; here they are used as they are.
template <int kBits>
inline constexpr int kCodeOffset = 0;

inline __m256i dot_step(__m256i acc, const Code& c, const std::int8_t* a) {
  std::int32_t four;
  std::memcpy(&four, a, 4);
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  // The same instruction in AVX-512's encoding: tests run this file on machines that have only that one.
  return _mm256_dpbusd_epi32(acc, c.v, _mm256_set1_epi32(four));
#else
  return _mm256_dpbusd_avx_epi32(acc, c.v, _mm256_set1_epi32(four));
#endif
}

// acc + sum over steps kFrom..kTo-1 of code x activation: exact in 32 bits.
template <int kBits, int kFrom, int kTo>
inline IV dot(IV acc, const Code (&c)[8], const std::int8_t* a) {
  // Two chains halve the latency; integer sums are exact, so the split changes nothing.
  __m256i odd = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int i = kFrom; i < kTo; i += 2) {
    acc.v = dot_step(acc.v, c[i], a + i * 4);
    odd = dot_step(odd, c[i + 1], a + i * 4 + 4);
  }
  return {_mm256_add_epi32(acc.v, odd)};
}

// The same as one chain, for callers that have enough sums under way; `a` starts at step kFrom.
template <int kBits, int kFrom, int kTo>
inline IV dot_chain(IV acc, const Code (&c)[8], const std::int8_t* a) {
#pragma GCC unroll 8
  for (int i = kFrom; i < kTo; ++i) acc.v = dot_step(acc.v, c[i], a + (i - kFrom) * 4);
  return acc;
}

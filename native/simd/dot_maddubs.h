// Codes times activations by vpmaddubsw: AVX2 without VNNI. Included before avx2.h, which says how.

struct IV {
  __m256i v;
};
// One register per step of 4 inputs x 8 rows.
struct Code {
  __m256i v;
};

// 8-bit codes are used signed (128 taken off), because an unsigned 8-bit product pair overflows the 16 bits of
// vpmaddubsw; the caller adds 128 x the activation sum back through the zero point.
template <int kBits>
inline constexpr int kCodeOffset = kBits == 8 ? 128 : 0;

// How many vpmaddubsw results of kBits-bit codes can be added in 16 bits: 2 x (2^bits - 1) x 127 each.
template <int kBits>
inline constexpr int kStepsPerSum = kBits <= 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;

// acc + sum over steps kFrom..kTo-1 of code x activation: exact in 32 bits. `a` starts at step kFrom.
template <int kBits, int kFrom, int kTo>
inline IV dot_chain(IV acc, const Code (&c)[8], const std::int8_t* a) {
  const __m256i ones = _mm256_set1_epi16(1);
  constexpr int kRun = kStepsPerSum<kBits> < kTo - kFrom ? kStepsPerSum<kBits> : kTo - kFrom;
#pragma GCC unroll 8
  for (int i = kFrom; i < kTo; i += kRun) {
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int j = i; j < i + kRun; ++j) {
      std::int32_t four;
      std::memcpy(&four, a + (j - kFrom) * 4, 4);
      const __m256i x = _mm256_set1_epi32(four);
      const __m256i product = kBits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(c[j].v), _mm256_sign_epi8(x, c[j].v))
                                         : _mm256_maddubs_epi16(c[j].v, x);
      sum = j == i ? product : _mm256_add_epi16(sum, product);
    }
    acc.v = _mm256_add_epi32(acc.v, _mm256_madd_epi16(sum, ones));
  }
  return acc;
}

// The same with `a` at step 0.
template <int kBits, int kFrom, int kTo>
inline IV dot(IV acc, const Code (&c)[8], const std::int8_t* a) {
  return dot_chain<kBits, kFrom, kTo>(acc, c, a + kFrom * 4);
}

// Bodies of probe.h, compiled once per ISA inside its namespace.

inline constexpr int kProbeSums = 4;
// Independent chains: more than latency x throughput of any multiply-add unit, few enough for 16 registers.
inline constexpr int kProbeChains = 12;

template <int kStreams>
inline float read_streams(const std::uint8_t* data, std::size_t num_bytes) {
  constexpr int kVectors = static_cast<int>(kProbeReadBytes / sizeof(float)) / kLanes;
  const std::size_t stride = num_bytes / kStreams;
  V sums[kProbeSums];
  for (V& sum : sums) sum = zero();
  for (std::size_t at = 0; at < stride; at += kProbeReadBytes) {
#pragma GCC unroll 8
    for (std::size_t s = 0; s < kStreams; ++s) {
      const auto* p = reinterpret_cast<const float*>(data + s * stride + at);
#pragma GCC unroll 8
      for (int i = 0; i < kVectors; ++i) sums[i % kProbeSums] = add(sums[i % kProbeSums], load(p + i * kLanes));
    }
  }
  V sum = zero();
  for (const V& part : sums) sum = add(sum, part);
  return reduce_max(sum);
}

inline float read_memory(const std::uint8_t* data, std::size_t num_bytes, int num_streams) {
  switch (num_streams) {
    case 2:
      return read_streams<2>(data, num_bytes);
    case 4:
      return read_streams<4>(data, num_bytes);
    case 8:
      return read_streams<8>(data, num_bytes);
    default:
      return read_streams<1>(data, num_bytes);
  }
}

inline float run_f32(std::int64_t num_rounds) {
  // Values that stay normal numbers for any number of rounds: the chains converge to 1.
  const V a = set1(0.5F);
  const V b = set1(0.5F);
  V chains[kProbeChains];
  for (int i = 0; i < kProbeChains; ++i) chains[i] = set1(static_cast<float>(i));
  for (std::int64_t round = 0; round < num_rounds; ++round) {
#pragma GCC unroll 12
    for (V& chain : chains) chain = fma(chain, a, b);
  }
  V sum = zero();
  for (const V& chain : chains) sum = add(sum, chain);
  return reduce_max(sum);
}

// 4-bit codes with the ISA's own instruction: vpdpbusd; vpmaddubsw, whose 16-bit sums of 8 such products cannot
// overflow, so that one vpmaddwd serves 8 steps; or whatever the kernels' own dot product is.
#if defined(__AVX512VNNI__)
inline constexpr double kInt8OpsPerRound = kProbeChains * 64 * 2;
inline std::int32_t run_int8(std::int64_t num_rounds) {
  const __m512i codes = _mm512_set1_epi8(3);
  const __m512i acts = _mm512_set1_epi8(-1);
  __m512i chains[kProbeChains];
  for (int i = 0; i < kProbeChains; ++i) chains[i] = _mm512_set1_epi32(i);
  for (std::int64_t round = 0; round < num_rounds; ++round) {
#pragma GCC unroll 12
    for (__m512i& chain : chains) chain = _mm512_dpbusd_epi32(chain, codes, acts);
  }
  __m512i sum = _mm512_setzero_si512();
  for (const __m512i& chain : chains) sum = _mm512_add_epi32(sum, chain);
  return _mm512_reduce_add_epi32(sum);
}
#elif defined(__AVXVNNI__)
inline constexpr double kInt8OpsPerRound = kProbeChains * 32 * 2;
inline std::int32_t run_int8(std::int64_t num_rounds) {
  const __m256i codes = _mm256_set1_epi8(3);
  const __m256i acts = _mm256_set1_epi8(-1);
  __m256i chains[kProbeChains];
  for (int i = 0; i < kProbeChains; ++i) chains[i] = _mm256_set1_epi32(i);
  for (std::int64_t round = 0; round < num_rounds; ++round) {
#pragma GCC unroll 12
    for (__m256i& chain : chains) chain = _mm256_dpbusd_avx_epi32(chain, codes, acts);
  }
  __m256i sum = _mm256_setzero_si256();
  for (const __m256i& chain : chains) sum = _mm256_add_epi32(sum, chain);
  return _mm256_extract_epi32(sum, 0);
}
#elif defined(__AVX2__)
inline constexpr int kInt8Steps = 8;
inline constexpr int kInt8Chains = 4;
inline constexpr double kInt8OpsPerRound = kInt8Chains * kInt8Steps * 32 * 2;
inline std::int32_t run_int8(std::int64_t num_rounds) {
  __m256i codes = _mm256_set1_epi8(3);
  const __m256i acts = _mm256_set1_epi8(-1);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i chains[kInt8Chains];
  for (int i = 0; i < kInt8Chains; ++i) chains[i] = _mm256_set1_epi32(i);
  for (std::int64_t round = 0; round < num_rounds; ++round) {
#pragma GCC unroll 4
    for (__m256i& chain : chains) {
      __m256i words = _mm256_setzero_si256();
#pragma GCC unroll 8
      for (int step = 0; step < kInt8Steps; ++step) {
        // Says that the codes have changed: the product would be taken out of the loop otherwise.
        asm volatile("" : "+x"(codes));
        words = _mm256_add_epi16(words, _mm256_maddubs_epi16(codes, acts));
      }
      chain = _mm256_add_epi32(chain, _mm256_madd_epi16(words, ones));
    }
  }
  std::int32_t sums[8];
  __m256i sum = _mm256_setzero_si256();
  for (const __m256i& chain : chains) sum = _mm256_add_epi32(sum, chain);
  std::memcpy(sums, &sum, sizeof(sums));
  return sums[0] + sums[1];
}
#else
inline constexpr int kInt8Chains = 8;
inline constexpr double kInt8OpsPerRound = kInt8Chains * kLanes * 4 * 8 * 2.0;
inline std::int32_t run_int8(std::int64_t num_rounds) {
  std::uint8_t packed[256];
  for (int i = 0; i < 256; ++i) packed[i] = static_cast<std::uint8_t>(i);
  Code codes[8];
  load_codes<4>(packed, 0, codes);
  std::int8_t acts[32];
  for (int i = 0; i < 32; ++i) acts[i] = static_cast<std::int8_t>(i - 16);
  IV chains[kInt8Chains];
  for (int i = 0; i < kInt8Chains; ++i) chains[i] = iset1(i);
  for (std::int64_t round = 0; round < num_rounds; ++round) {
    // Says that the activations have changed: products would be taken out of the loop otherwise.
    asm volatile("" : : "r"(acts) : "memory");
    for (IV& chain : chains) chain = dot<4, 0, 8>(chain, codes, acts);
  }
  V sum = zero();
  for (const IV& chain : chains) sum = add(sum, to_f32(chain));
  return static_cast<std::int32_t>(reduce_max(sum) * 1e-6F);
}
#endif

inline ProbeKernels make_probe_kernels() {
  return {&read_memory, &run_f32, &run_int8, kProbeChains * kLanes * 2.0, kInt8OpsPerRound};
}

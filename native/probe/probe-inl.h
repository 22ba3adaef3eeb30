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

// Runs `step` on `kChains` independent chains, which begin as `make(0)`, `make(1)`, ...; `read` gives lanes of floats.
template <int kChains, typename Make, typename Step, typename Read>
inline float run_chains(std::int64_t num_rounds, const Make& make, const Step& step, const Read& read) {
  decltype(make(0)) chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = make(i);
  for (std::int64_t round = 0; round < num_rounds; ++round) {
#pragma GCC unroll 12
    for (auto& chain : chains) chain = step(chain);
  }
  V sum = zero();
  for (const auto& chain : chains) sum = add(sum, read(chain));
  return reduce_max(sum);
}

inline float run_f32(std::int64_t num_rounds) {
  // Values that stay normal numbers for any number of rounds: the chains converge to 1.
  const V a = set1(0.5F);
  const V b = set1(0.5F);
  return run_chains<kProbeChains>(
      num_rounds, [](int i) { return set1(static_cast<float>(i)); }, [&](V chain) { return fma(chain, a, b); },
      [](V chain) { return chain; });
}

// 4-bit codes with the ISA's own instruction: vpdpbusd; vpmaddubsw, whose 16-bit sums of 8 such products cannot
// overflow, so that one vpmaddwd serves 8 steps; or whatever the kernels' own dot product is.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
inline constexpr double kInt8OpsPerRound = kProbeChains * kLanes * 4 * 2.0;
inline float run_int8(std::int64_t num_rounds) {
#if defined(__AVX512VNNI__)
  const __m512i codes = _mm512_set1_epi8(3);
  const __m512i acts = _mm512_set1_epi8(-1);
  const auto step = [&](IV chain) { return IV{_mm512_dpbusd_epi32(chain.v, codes, acts)}; };
#else
  const __m256i codes = _mm256_set1_epi8(3);
  const __m256i acts = _mm256_set1_epi8(-1);
  const auto step = [&](IV chain) { return IV{_mm256_dpbusd_avx_epi32(chain.v, codes, acts)}; };
#endif
  return run_chains<kProbeChains>(num_rounds, iset1, step, to_f32);
}
#elif defined(__AVX2__)
inline constexpr int kInt8Steps = 8;
inline constexpr int kInt8Chains = 4;
inline constexpr double kInt8OpsPerRound = kInt8Chains * kInt8Steps * kLanes * 4 * 2.0;
inline float run_int8(std::int64_t num_rounds) {
  __m256i codes = _mm256_set1_epi8(3);
  const __m256i acts = _mm256_set1_epi8(-1);
  const __m256i ones = _mm256_set1_epi16(1);
  const auto step = [&](IV chain) {
    __m256i words = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < kInt8Steps; ++i) {
      // Says that the codes have changed: the product would be taken out of the loop otherwise.
      asm volatile("" : "+x"(codes));
      words = _mm256_add_epi16(words, _mm256_maddubs_epi16(codes, acts));
    }
    return IV{_mm256_add_epi32(chain.v, _mm256_madd_epi16(words, ones))};
  };
  return run_chains<kInt8Chains>(num_rounds, iset1, step, to_f32);
}
#else
inline constexpr int kInt8Chains = 8;
inline constexpr double kInt8OpsPerRound = kInt8Chains * kLanes * 4 * 8 * 2.0;
inline float run_int8(std::int64_t num_rounds) {
  std::uint8_t packed[256];
  for (int i = 0; i < 256; ++i) packed[i] = static_cast<std::uint8_t>(i);
  Code codes[8];
  load_codes<4>(packed, 0, codes);
  std::int8_t acts[32];
  for (int i = 0; i < 32; ++i) acts[i] = static_cast<std::int8_t>(i - 16);
  const auto step = [&](IV chain) {
    // Says that the activations have changed: products would be taken out of the loop otherwise.
    asm volatile("" : : "r"(acts) : "memory");
    return dot<4, 0, 8>(chain, codes, acts);
  };
  return run_chains<kInt8Chains>(num_rounds, iset1, step, to_f32);
}
#endif

inline ProbeKernels make_probe_kernels() {
  return {&read_memory, &run_f32, &run_int8, kProbeChains * kLanes * 2.0, kInt8OpsPerRound};
}

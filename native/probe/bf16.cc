// The bfloat16 probe. No kernel table has these instructions, so the function carries its own target.
#include "probe/probe.h"

#if defined(PELTON_X86) && defined(__GNUC__)
#include <immintrin.h>
#define PELTON_BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#endif

namespace pelton {

namespace {
constexpr int kChains = 12;
}

double bf16_ops_per_round() { return kChains * 32 * 2.0; }

#ifdef PELTON_BF16_TARGET

bool has_bf16_dot() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
}

PELTON_BF16_TARGET float run_bf16(std::int64_t num_rounds) {
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5F), _mm512_set1_ps(0.5F));
  const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(1e-6F), _mm512_set1_ps(1e-6F));
  __m512 chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = _mm512_set1_ps(static_cast<float>(i));
  for (std::int64_t round = 0; round < num_rounds; ++round) {
#pragma GCC unroll 12
    for (__m512& chain : chains) chain = _mm512_dpbf16_ps(chain, a, b);
  }
  __m512 sum = _mm512_setzero_ps();
  for (const __m512& chain : chains) sum = _mm512_add_ps(sum, chain);
  float lanes[16];
  _mm512_storeu_ps(lanes, sum);
  return lanes[0];
}

#else

bool has_bf16_dot() { return false; }
float run_bf16(std::int64_t) { return 0.0F; }

#endif

}  // namespace pelton

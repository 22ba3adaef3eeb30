// Loops that reach one limit of the machine each: reads from memory, float32 multiply-adds, int8 dot products.
//
// They share the simd headers with the kernels but do nothing useful, so a kernel can be compared with the best that
// its instruction set allows here. Entry points: measure.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pelton {

// A read is cut into this many bytes per stream and turn.
inline constexpr std::size_t kProbeReadBytes = 256;

struct ProbeKernels {
  // Reads `num_bytes` (a multiple of num_streams * kProbeReadBytes) at `num_streams` (1, 2, 4 or 8) places in turn.
  float (*read_memory)(const std::uint8_t* data, std::size_t num_bytes, int num_streams);
  // `num_rounds` rounds of independent chains; the result depends on all of them.
  float (*run_f32)(std::int64_t num_rounds);
  float (*run_int8)(std::int64_t num_rounds);
  // Operations of one round; a multiply-add is two.
  double f32_ops_per_round;
  double int8_ops_per_round;
};

// bfloat16 dot products (AVX512-BF16); whether this machine has them, and the loop, which must not run elsewhere.
bool has_bf16_dot();
float run_bf16(std::int64_t num_rounds);
double bf16_ops_per_round();

}  // namespace pelton

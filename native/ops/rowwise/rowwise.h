// Ops that work on one token's row at a time: normalisation, gated activation, rotation.
#pragma once

#include <cstdint>

namespace pelton {

// out[n] = x[n] / sqrt(mean(x^2) + eps) * weight[n] (Zhang and Sennrich 2019, eq. 4). The sum of squares runs in 16
// lanes over the row, lanes are added by halves. `out` may be `x`.
using RmsNormKernel = void (*)(const float* x, const float* weight, float eps, std::int64_t n, float* out);

// out[i] = gate[i] / (1 + exp(-gate[i])) * up[i] (SwiGLU, Shazeer 2020). `out` may be `gate` or `up`.
using SiluMulKernel = void (*)(const float* gate, const float* up, std::int64_t n, float* out);

// Rotates `num_heads` heads of `head_dim` in place by the angles whose cosines and sines are given per pair
// (RoPE, Su et al. 2021, eq. 34). `is_adjacent`: pairs are (2i, 2i+1), else (i, i + num_pairs). Dimensions from
// 2 * num_pairs on stay as they are.
using RopeKernel = void (*)(float* x, std::int64_t num_heads, std::int64_t head_dim, std::int64_t num_pairs,
                            bool is_adjacent, const float* cos, const float* sin);

}  // namespace pelton

// linear: y[t, n] = sum over k of x[t, k] * w[n, k], for a packed weight and a range of its tiles.
//
// Affine weights take activations quantised to int8 with one scale per token and 32 inputs. The canonical order, the
// same for every number of tokens and every ISA: groups in index order, each adding
//     fma(float(sum of (code - zero_point) * q), scale * activation scale, acc), then, with minima,
//     fma(min, activation scale * sum of q, acc).
// Float weights take float32 activations: acc = fma(w[n, k], x[t, k], acc) for k in index order.
#pragma once

#include <cstdint>

#include "quant/packed_weight.h"

namespace pelton {

// Activations of T tokens, quantised per token and group of 32 inputs: x = scale * q. All arrays are row-major over
// tokens; `sum16` and `sum32` are sums of q over 16 and 32 inputs, `scaled_sum16/32` the same times the scale.
struct QuantActs {
  std::int64_t cols = 0;
  std::int8_t* q = nullptr;             // [T, cols]
  float* scale = nullptr;               // [T, cols/32]
  std::int32_t* sum16 = nullptr;        // [T, cols/16]
  std::int32_t* sum32 = nullptr;        // [T, cols/32]
  float* scaled_sum16 = nullptr;        // [T, cols/16]
  float* scaled_sum32 = nullptr;        // [T, cols/32]
};

// Bytes that QuantActs needs for `num_tokens` tokens of `cols` inputs (a multiple of 32).
std::size_t quant_acts_bytes(std::int64_t num_tokens, std::int64_t cols);

// Points the arrays of a QuantActs into `memory`, which holds quant_acts_bytes(num_tokens, cols) bytes.
QuantActs place_quant_acts(std::uint8_t* memory, std::int64_t num_tokens, std::int64_t cols);

struct LinearArgs {
  const PackedWeight* weight = nullptr;
  const QuantActs* quant = nullptr;  // affine weights
  const float* x = nullptr;          // float weights: [T, cols]
  float* y = nullptr;                // [T, rows]
  bool accumulate = false;           // y += instead of y =
};

// Computes tiles [tile_begin, tile_end) for tokens [token_begin, token_end).
using LinearKernel = void (*)(const LinearArgs&, std::int64_t tile_begin, std::int64_t tile_end,
                              std::int64_t token_begin, std::int64_t token_end);

// x[cols] -> one row of `out` at `token`.
using QuantizeKernel = void (*)(const float* x, std::int64_t token, const QuantActs& out);

}  // namespace pelton

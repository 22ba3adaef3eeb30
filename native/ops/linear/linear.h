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

// Tokens whose activations lie side by side: as many as the widest kernel takes at once.
inline constexpr std::int64_t kActTokens = 16;

// Activations of T tokens, quantised per token and group of 32 inputs: x = scale * q. All arrays hold blocks of up to
// kActTokens tokens, and in a block [cols/32, block_tokens, ...]: what a kernel needs of a block's tokens for one group
// is one piece of memory. `sum16` and `sum32` are sums of q over 16 and 32 inputs, `scaled_sum16/32` the same times the
// scale.
struct QuantActs {
  std::int64_t cols = 0;
  std::int64_t block_tokens = 0;        // min(T, kActTokens); the last block has as many, used or not
  std::int8_t* q = nullptr;             // [blocks, cols/32, block_tokens, 32]
  float* scale = nullptr;               // [blocks, cols/32, block_tokens]
  std::int32_t* sum16 = nullptr;        // [blocks, cols/32, block_tokens, 2]
  std::int32_t* sum32 = nullptr;        // [blocks, cols/32, block_tokens]
  float* scaled_sum16 = nullptr;        // [blocks, cols/32, block_tokens, 2]
  float* scaled_sum32 = nullptr;        // [blocks, cols/32, block_tokens]
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

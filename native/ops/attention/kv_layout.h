// How keys and values lie in the blocks of the paged KV cache, by dtype.
//
// A block holds, for one layer, every head's keys, their scales, every head's values, their scales, and centers.
//
// f16, bf16, f32: one head's keys are [key_dim, 16 tokens], one head's values [16 tokens, value_dim].
//
// int8, int4: unsigned codes in units as quant/format.h packs weights, so that the dot products of weights serve them.
// A unit of keys is 16 tokens x 32 dimensions: line i of 64 bytes has, token by token, the codes of dimensions 4i to
// 4i + 3. A unit of values is 32 dimensions x 16 tokens: line i has, dimension by dimension, the codes of tokens 4i to
// 4i + 3 for the first 16 dimensions, line 4 + i for the other 16. Codes of 4 bits put line 4 + i into the high nibbles
// of line i; a fifth bit is in a line behind those, bit i of its bytes that of line i. A token has one scale per head,
// in float16. int4 values have 4 bits, int4 keys 5: 16 steps for keys cost too much perplexity
// (docs/log.d/attention.md).
//
// Rounding, per token and head, in float32 (`f16` rounds to nearest even and is held to the largest finite value):
//   int8: scale = f16(max |x| / 127); code = 128 + (round(x * (1 / scale)) held to [-127, 127]);
//         x' = scale * (code - 128)
//   int4: h = 16 for keys and 8 for values; m = the x of largest magnitude, the positive one of two; for f = 1, 0.95,
//         0.9, 0.85, 0.8, 0.75: scale = f16(f * m / -h); code = h + (round(x * (1 / scale)) held to [-h, h-1]);
//         x' = scale * (code - h); the first f of those with the least squared error is taken: sum of (x - x')^2 on 16
//         lanes (lane = d mod 16, d in order), then by halves, nothing fused
// with 0 for 1 / scale where the scale is 0. So scales are always finite, whatever a slot held before.
//
// int8 and int4 keys and values are rotated first: runs of n dimensions, the largest power of two up to 256 that
// divides key_dim (value_dim), go through the Walsh-Hadamard transform (16 neighbours as a sum in order, then
// butterflies a + b, a - b over distances 16, 32, ... n / 2, then a division by n). It spreads the few large dimensions
// over all. Queries and attention's result go through the same without the division, which leaves q . k as it is and
// turns values back.
//
// Then the block's center is taken off int4 keys: keys of a head have a strong mean, which would use up most of the
// steps. The center is the mean of the keys that the block before holds, as they are read back there, and 0 in the
// first block; so it depends on the tokens before and on nothing else. It is kept as 4-bit codes, of every 32
// dimensions the first 16 in the low nibbles, with a float16 scale behind them:
//   mean[d] = center'[d] + (sum over the 16 tokens j, in order, of scale[j] * (code[j, d] - 16)) / 16
//   center = mean as an int4 value is rounded, with f = 1 only
// where center' is that of the block before and nothing is fused.
#pragma once

#include <cstdint>

namespace pelton {

inline constexpr std::int64_t kBlockTokens = 16;
// Dimensions of a unit of codes.
inline constexpr std::int64_t kUnitDims = 32;

enum class KvDtype : std::uint8_t { kF16, kBf16, kF32, kI8, kI4 };

constexpr int value_bits(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kF32: return 32;
    case KvDtype::kI8: return 8;
    case KvDtype::kI4: return 4;
    default: return 16;
  }
}
constexpr int key_bits(KvDtype dtype) { return dtype == KvDtype::kI4 ? 5 : value_bits(dtype); }
// Codes with a scale per token and head.
constexpr bool is_coded(KvDtype dtype) { return value_bits(dtype) <= 8; }
constexpr bool has_center(KvDtype dtype) { return dtype == KvDtype::kI4; }
// Rotated before they are rounded.
constexpr bool is_rotated(KvDtype dtype) { return is_coded(dtype); }
// The code of 0.
constexpr int zero_code(int bits) { return 1 << (bits - 1); }

// Bytes of a unit of codes, and of one head's scales in a block's keys or values.
constexpr std::int64_t unit_bytes(int bits) { return kUnitDims * kBlockTokens * bits / 8; }
constexpr std::int64_t kv_scale_bytes(KvDtype dtype) { return is_coded(dtype) ? kBlockTokens * 2 : 0; }
// Bytes of `num` neighbouring elements, and dimensions in a line of keys, that are not coded.
constexpr std::int64_t kv_bytes(KvDtype dtype, std::int64_t num) { return num * value_bits(dtype) / 8; }
constexpr std::int64_t key_line_dims(KvDtype dtype) { return 32 / value_bits(dtype); }

// Where one layer's K and V live.
struct KvLayer {
  std::uint8_t* base = nullptr;
  std::int64_t block_bytes = 0;       // from one block to the next
  std::int64_t key_head_bytes = 0;    // one head's keys of a block
  std::int64_t value_head_bytes = 0;
  // From a block's keys:
  std::int64_t key_scale_offset = 0;    // per head kBlockTokens scales
  std::int64_t value_offset = 0;
  std::int64_t value_scale_offset = 0;
  std::int64_t center_offset = 0;       // per head, center_head_bytes
  std::int64_t center_head_bytes = 0;
  std::int64_t line_bytes = 64;         // what values and layers start at a multiple of
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t key_dim = 0;           // head_dim rounded up to whole lines or units; the rest is 0
  std::int64_t value_dim = 0;         // head_dim rounded up to 16 or to whole units
  KvDtype dtype = KvDtype::kF16;

  // Bytes of a block that hold something, and those from one layer of a block to the next.
  std::int64_t used_bytes() const { return center_offset + num_kv_heads * center_head_bytes; }
  std::int64_t padded_bytes() const { return (used_bytes() + line_bytes - 1) / line_bytes * line_bytes; }
};

// Dimensions that a rotation of `dim` dimensions mixes.
constexpr std::int64_t rotation_dims(std::int64_t dim) { return (dim | 256) & -(dim | 256); }

// The layout of `num_kv_heads` heads; base and block_bytes are left to the owner of the memory.
inline KvLayer make_kv_layout(std::int64_t num_kv_heads, std::int64_t head_dim, KvDtype dtype) {
  const auto round_up = [](std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; };
  KvLayer kv;
  kv.num_kv_heads = num_kv_heads;
  kv.head_dim = head_dim;
  kv.dtype = dtype;
  kv.key_dim = round_up(head_dim, is_coded(dtype) ? kUnitDims : key_line_dims(dtype));
  kv.value_dim = round_up(head_dim, is_coded(dtype) ? kUnitDims : 16);
  kv.key_head_bytes = kv.key_dim * kBlockTokens * key_bits(dtype) / 8;
  kv.value_head_bytes = kv.value_dim * kBlockTokens * value_bits(dtype) / 8;
  kv.key_scale_offset = num_kv_heads * kv.key_head_bytes;
  // Whole lines of the processor's caches, except int4: keys of 5 bits and centers leave no room for gaps.
  kv.line_bytes = has_center(dtype) ? 2 : 64;
  kv.value_offset = round_up(kv.key_scale_offset + num_kv_heads * kv_scale_bytes(dtype), kv.line_bytes);
  kv.value_scale_offset = kv.value_offset + num_kv_heads * kv.value_head_bytes;
  kv.center_offset = kv.value_scale_offset + num_kv_heads * kv_scale_bytes(dtype);
  kv.center_head_bytes = has_center(dtype) ? kv.key_dim / 2 + 2 : 0;
  return kv;
}

}  // namespace pelton

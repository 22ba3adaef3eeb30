// How keys and values lie in the blocks of the paged KV cache, by dtype.
//
// A block holds, for one layer, every head's keys and then every head's values. One head's keys are lines of 64 bytes,
// each with 32 / bits dimensions x 16 tokens: dimension by dimension for whole bytes; for int4, a word per token whose
// nibbles, lowest first, are 8 dimensions. One head's values are [16 tokens, value_dim]; int4 values come in units of
// 32 dimensions, dimension i in the low and 16 + i in the high nibble of byte i. int8 and int4 codes are followed by
// the 16 tokens' scales, and for int4 their minima, in float16.
//
// Rounding, per token and head, in float32 (`f16` rounds to nearest even and is held to the largest finite value):
//   int8: scale = f16(max |x| / 127); code = round(x * (1 / scale)) held to [-127, 127]; x' = scale * code
//   int4: minimum = f16(min x); scale = f16((max x - minimum) / 15);
//         code = round((x - minimum) * (1 / scale)) held to [0, 15]; x' = scale * code + minimum
// with 0 for 1 / scale where the scale is 0. So scales and minima are always finite, whatever a slot held before.
//
// int4 keys are rotated first: runs of n dimensions, the largest power of two up to 256 that divides key_dim, go through the
// Walsh-Hadamard transform (16 neighbours as a sum in order, then butterflies a + b, a - b over distances 16, 32, ...
// n / 2, then a division by n; queries go through the same without the division, which leaves q . k as it is). It spreads the few large dimensions over all.
// Then the block's center is taken off: keys of a head have a strong mean, which would use up most of 16 steps. The center is the mean of the keys that the block before holds, as they are read back
// there, and 0 in the first block; so it depends on the tokens before and on nothing else. It is kept as int8 codes with
// a float32 scale, behind the values:
//   mean[d] = center'[d] + (sum over the 16 tokens j, in order, of (scale[j] * code[j, d] + minimum[j])) / 16
//   scale = max |mean| / 127; code = round(mean * (1 / scale)) held to [-127, 127]; center[d] = scale * code
// where center' is that of the block before and nothing is fused.
#pragma once

#include <cstdint>

namespace pelton {

inline constexpr std::int64_t kBlockTokens = 16;

enum class KvDtype : std::uint8_t { kF16, kBf16, kF32, kI8, kI4 };

constexpr std::int64_t kv_bits(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kF32: return 32;
    case KvDtype::kI8: return 8;
    case KvDtype::kI4: return 4;
    default: return 16;
  }
}
constexpr bool has_scale(KvDtype dtype) { return kv_bits(dtype) <= 8; }
constexpr bool has_minimum(KvDtype dtype) { return dtype == KvDtype::kI4; }
constexpr bool has_center(KvDtype dtype) { return dtype == KvDtype::kI4; }

// Bytes of `num` neighbouring elements.
constexpr std::int64_t kv_bytes(KvDtype dtype, std::int64_t num) { return num * kv_bits(dtype) / 8; }
// Bytes of one head's scales and minima in a block's keys or values.
constexpr std::int64_t kv_scale_bytes(KvDtype dtype) {
  return kBlockTokens * 2 * (static_cast<std::int64_t>(has_scale(dtype)) + static_cast<std::int64_t>(has_minimum(dtype)));
}
// Dimensions in a line of keys, in the smallest unit of a head's keys, and in that of a token's values.
constexpr std::int64_t key_line_dims(KvDtype dtype) { return 32 / kv_bits(dtype); }
constexpr std::int64_t key_unit_dims(KvDtype dtype) { return has_center(dtype) ? 16 : key_line_dims(dtype); }
constexpr std::int64_t value_unit_dims(KvDtype dtype) { return dtype == KvDtype::kI4 ? 32 : 16; }

// Where one layer's K and V live.
struct KvLayer {
  std::uint8_t* base = nullptr;
  std::int64_t block_bytes = 0;       // from one block to the next
  std::int64_t key_head_bytes = 0;    // one head's keys of a block, scales included
  std::int64_t value_head_bytes = 0;
  std::int64_t value_offset = 0;      // from a block's keys to its values
  std::int64_t center_offset = 0;     // from a block's keys to its centers: per head key_dim codes, then the scale
  std::int64_t center_head_bytes = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t key_dim = 0;           // head_dim rounded up to whole units; the rest is 0
  std::int64_t value_dim = 0;         // head_dim rounded up to whole units
  KvDtype dtype = KvDtype::kF16;

  // Dimensions that a rotation mixes.
  std::int64_t rotation_dims() const { return (key_dim | 256) & -(key_dim | 256); }
  // Bytes of a block that hold something.
  std::int64_t used_bytes() const { return center_offset + num_kv_heads * center_head_bytes; }
};

// The layout of `num_kv_heads` heads; base and block_bytes are left to the owner of the memory.
inline KvLayer make_kv_layout(std::int64_t num_kv_heads, std::int64_t head_dim, KvDtype dtype) {
  const auto round_up = [](std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; };
  KvLayer kv;
  kv.num_kv_heads = num_kv_heads;
  kv.head_dim = head_dim;
  kv.dtype = dtype;
  kv.key_dim = round_up(head_dim, key_unit_dims(dtype));
  kv.value_dim = round_up(head_dim, value_unit_dims(dtype));
  kv.key_head_bytes = kv_bytes(dtype, kv.key_dim * kBlockTokens) + kv_scale_bytes(dtype);
  kv.value_head_bytes = kv_bytes(dtype, kv.value_dim * kBlockTokens) + kv_scale_bytes(dtype);
  kv.value_offset = round_up(num_kv_heads * kv.key_head_bytes, 64);
  kv.center_offset = kv.value_offset + num_kv_heads * kv.value_head_bytes;
  kv.center_head_bytes = has_center(dtype) ? round_up(kv.key_dim + 4, 16) : 0;
  return kv;
}

}  // namespace pelton

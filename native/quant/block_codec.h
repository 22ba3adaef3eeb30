// One GGUF block as numbers: codes, scales and minima, before they are laid out in tiles.
#pragma once

#include <cstdint>

#include "quant/format.h"

namespace pelton {

// A block of up to 256 inputs of one row. `scale` and `min` hold one entry per group: float16 bits for
// ScaleKind::kF16; for kSuper a signed byte value whose factor is `super_scale` (`super_min`), float16 bits.
struct DecodedBlock {
  std::uint8_t code[256];
  std::int32_t scale[16];
  std::int32_t min[16];
  std::uint16_t super_scale;
  std::uint16_t super_min;
};

// Decodes the block of `format` (an affine one) at `p`, layouts as published in ggml's block definitions
// (ggml-common.h: block_q4_0 ... block_q6_K). `super_min` comes with its sign flipped, so that
// value = scale * (code - zero_point) + min holds for every format.
void decode_block(const PackedFormat& format, const std::uint8_t* p, DecodedBlock& out);

}  // namespace pelton

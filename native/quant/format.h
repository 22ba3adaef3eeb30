// The weight formats: GGUF block types, and the one packed family they all become.
//
// A weight matrix [rows, cols] is cut into tiles of 16 output rows. An affine format keeps, per unit of 16 rows x 32
// inputs, the codes of its bit planes (a 4-bit, a 2-bit and a 1-bit plane as the width needs, or 8-bit bytes) and, per
// group of 16 or 32 inputs, a scale and perhaps a minimum: value = scale * (code - zero_point) + min.
//
// Bytes of a unit: step s (0..7) is inputs 4s..4s+3 of 16 rows, 64 code bytes, row r's four inputs at 4r..4r+3. The
// 4-bit plane keeps step s in the low nibble of line s (s < 4) and in the high nibble of line s-4 (s >= 4); the 2-bit
// plane keeps step s in line s%2 at bits 2*(s/2); the 1-bit plane keeps step s at bit s of its one line.
#pragma once

#include <cstdint>

namespace pelton {

// Values are those of ggml_type in the GGUF specification.
enum class BlockType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

inline constexpr int kNumFormats = 13;

// How the scales of a packed format are kept.
enum class ScaleKind : std::uint8_t {
  kNone,   // float weights
  kF16,    // one float16 per row and group (and one per minimum)
  kSuper,  // one signed byte per row and group, times one float16 per row and 256 inputs
};

struct PackedFormat {
  BlockType type;
  const char* name;
  int index;            // position in the kernel tables
  int block_size;       // elements of a GGUF block
  int block_bytes;      // bytes of a GGUF block
  int bits;             // width of a code; 16 or 32 for float weights
  int group;            // inputs that share a scale; 0 for float weights
  ScaleKind scale_kind;
  bool has_min;
  int zero_point;
};

inline constexpr PackedFormat kFormats[kNumFormats] = {
    {BlockType::kF32, "F32", 0, 1, 4, 32, 0, ScaleKind::kNone, false, 0},
    {BlockType::kF16, "F16", 1, 1, 2, 16, 0, ScaleKind::kNone, false, 0},
    {BlockType::kBF16, "BF16", 2, 1, 2, 16, 0, ScaleKind::kNone, false, 0},
    {BlockType::kQ8_0, "Q8_0", 3, 32, 34, 8, 32, ScaleKind::kF16, false, 128},
    {BlockType::kQ4_0, "Q4_0", 4, 32, 18, 4, 32, ScaleKind::kF16, false, 8},
    {BlockType::kQ4_1, "Q4_1", 5, 32, 20, 4, 32, ScaleKind::kF16, true, 0},
    {BlockType::kQ5_0, "Q5_0", 6, 32, 22, 5, 32, ScaleKind::kF16, false, 16},
    {BlockType::kQ5_1, "Q5_1", 7, 32, 24, 5, 32, ScaleKind::kF16, true, 0},
    {BlockType::kQ2_K, "Q2_K", 8, 256, 84, 2, 16, ScaleKind::kSuper, true, 0},
    {BlockType::kQ3_K, "Q3_K", 9, 256, 110, 3, 16, ScaleKind::kSuper, false, 4},
    {BlockType::kQ4_K, "Q4_K", 10, 256, 144, 4, 32, ScaleKind::kSuper, true, 0},
    {BlockType::kQ5_K, "Q5_K", 11, 256, 176, 5, 32, ScaleKind::kSuper, true, 0},
    {BlockType::kQ6_K, "Q6_K", 12, 256, 210, 6, 16, ScaleKind::kSuper, false, 32},
};

// The format of a GGUF type id; nullptr if it is not supported.
inline constexpr const PackedFormat* find_format(std::uint32_t type) {
  for (const PackedFormat& format : kFormats) {
    if (static_cast<std::uint32_t>(format.type) == type) return &format;
  }
  return nullptr;
}

inline constexpr int kTileRows = 16;
inline constexpr int kUnitCols = 32;
inline constexpr int kSuperCols = 256;

}  // namespace pelton

#include "quant/packed_weight.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "quant/block_codec.h"

namespace pelton {

namespace {

constexpr std::int64_t kMaxSide = std::int64_t{1} << 31;

std::size_t unit_bytes(const PackedFormat& format) { return static_cast<std::size_t>(64 * format.bits); }

// Puts the 8 steps of one unit, 64 code bytes each, into the format's bit planes at `out`.
void pack_planes(int bits, const std::uint8_t (&steps)[8][64], std::uint8_t* out) {
  if (bits == 8) {
    std::memcpy(out, steps, sizeof steps);
    return;
  }
  int shift = 0;
  if ((bits & 4) != 0) {
    for (int s = 0; s < 4; ++s) {
      for (int k = 0; k < 64; ++k) {
        out[s * 64 + k] = static_cast<std::uint8_t>((steps[s][k] & 15) | ((steps[s + 4][k] & 15) << 4));
      }
    }
    shift = 4;
    out += 256;
  }
  if ((bits & 2) != 0) {
    for (int line = 0; line < 2; ++line) {
      for (int k = 0; k < 64; ++k) {
        unsigned byte = 0;
        for (int b = 0; b < 4; ++b) byte |= ((static_cast<unsigned>(steps[line + 2 * b][k]) >> shift) & 3u) << (2 * b);
        out[line * 64 + k] = static_cast<std::uint8_t>(byte);
      }
    }
    shift += 2;
    out += 128;
  }
  if ((bits & 1) != 0) {
    for (int k = 0; k < 64; ++k) {
      unsigned byte = 0;
      for (int s = 0; s < 8; ++s) byte |= ((static_cast<unsigned>(steps[s][k]) >> shift) & 1u) << s;
      out[k] = static_cast<std::uint8_t>(byte);
    }
  }
}

// Code of row `row` and input `col` (within the unit) read back from the planes at `unit`.
unsigned read_code(int bits, const std::uint8_t* unit, int row, int col) {
  const int step = col / 4;
  const int k = row * 4 + col % 4;
  if (bits == 8) return unit[step * 64 + k];
  unsigned code = 0;
  int shift = 0;
  if ((bits & 4) != 0) {
    code = (static_cast<unsigned>(unit[(step % 4) * 64 + k]) >> (step / 4 * 4)) & 15u;
    shift = 4;
    unit += 256;
  }
  if ((bits & 2) != 0) {
    code |= ((static_cast<unsigned>(unit[(step % 2) * 64 + k]) >> (step / 2 * 2)) & 3u) << shift;
    shift += 2;
    unit += 128;
  }
  if ((bits & 1) != 0) code |= ((static_cast<unsigned>(unit[k]) >> step) & 1u) << shift;
  return code;
}

}  // namespace

PackedWeight::PackedWeight(std::uint32_t type, std::int64_t rows, std::int64_t cols, const std::uint8_t* data,
                           std::size_t num_bytes, ThreadPool& pool)
    : format_(find_format(type)), rows_(rows), cols_(cols) {
  check(format_ != nullptr, "unknown GGUF type id " + std::to_string(type));
  check(rows > 0 && cols > 0 && rows < kMaxSide && cols < kMaxSide, "rows and cols must be 1 to 2^31-1");
  check(cols % format_->block_size == 0, std::string(format_->name) + " needs a multiple of " +
                                             std::to_string(format_->block_size) + " columns, not " +
                                             std::to_string(cols));
  const std::size_t row_bytes =
      static_cast<std::size_t>(cols / format_->block_size) * static_cast<std::size_t>(format_->block_bytes);
  check(num_bytes / row_bytes == static_cast<std::size_t>(rows) && num_bytes % row_bytes == 0,
        "weight data has " + std::to_string(num_bytes) + " bytes, expected rows x " + std::to_string(row_bytes));
  lay_out();
  constexpr std::int64_t kTilesPerItem = 8;
  pool.for_each((num_tiles() + kTilesPerItem - 1) / kTilesPerItem, [&](std::int64_t item) {
    const std::int64_t end = std::min((item + 1) * kTilesPerItem, num_tiles());
    for (std::int64_t tile = item * kTilesPerItem; tile < end; ++tile) {
      if (is_float()) {
        pack_float_tile(tile, data);
      } else {
        pack_affine_tile(tile, data);
      }
    }
  });
}

void PackedWeight::lay_out() {
  const auto cols = static_cast<std::size_t>(cols_);
  if (is_float()) {
    codes_.tile_bytes = cols * kTileRows * static_cast<std::size_t>(format_->bits / 8);
  } else {
    const std::size_t num_groups = cols / static_cast<std::size_t>(format_->group);
    const std::size_t group_bytes = kTileRows * (format_->scale_kind == ScaleKind::kF16 ? 2u : 1u);
    codes_.tile_bytes = cols / kUnitCols * unit_bytes(*format_);
    scales_.tile_bytes = num_groups * group_bytes;
    if (format_->has_min) mins_.tile_bytes = num_groups * group_bytes;
    if (format_->scale_kind == ScaleKind::kSuper) {
      super_scales_.tile_bytes = cols / kSuperCols * kTileRows * 2;
      if (format_->has_min) super_mins_.tile_bytes = super_scales_.tile_bytes;
    }
  }
  std::size_t total = 0;
  for (Part* part : {&codes_, &scales_, &mins_, &super_scales_, &super_mins_}) {
    part->offset = total;
    total += (part->tile_bytes * static_cast<std::size_t>(num_tiles()) + 63) / 64 * 64;
  }
  memory_ = AlignedBuffer(total, /*huge_pages=*/true);
}

void PackedWeight::pack_float_tile(std::int64_t tile, const std::uint8_t* data) {
  const auto width = static_cast<std::size_t>(format_->bits / 8);
  std::uint8_t* out = base(codes_, tile);
  for (std::int64_t r = 0; r < kTileRows && tile * kTileRows + r < rows_; ++r) {
    const std::uint8_t* row = data + static_cast<std::size_t>((tile * kTileRows + r) * cols_) * width;
    for (std::int64_t c = 0; c < cols_; ++c) {
      std::memcpy(out + static_cast<std::size_t>(c * kTileRows + r) * width, row + static_cast<std::size_t>(c) * width,
                  width);
    }
  }
}

void PackedWeight::pack_affine_tile(std::int64_t tile, const std::uint8_t* data) {
  const int block_size = format_->block_size;
  const std::int64_t num_blocks = cols_ / block_size;
  const int groups_per_block = block_size / format_->group;
  const int units_per_block = block_size / kUnitCols;
  const bool is_super = format_->scale_kind == ScaleKind::kSuper;
  std::uint8_t steps[8][8][64];
  DecodedBlock block;
  auto put = [&](const Part& part, std::int64_t index, std::int64_t row, std::int32_t value) {
    std::uint8_t* p = base(part, tile) + (index * kTileRows + row) * (is_super ? 1 : 2);
    if (is_super) {
      *p = static_cast<std::uint8_t>(static_cast<std::int8_t>(value));
    } else {
      const auto bits = static_cast<std::uint16_t>(value);
      std::memcpy(p, &bits, 2);
    }
  };
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    std::memset(steps, 0, sizeof steps);
    for (std::int64_t r = 0; r < kTileRows && tile * kTileRows + r < rows_; ++r) {
      const std::int64_t block_index = (tile * kTileRows + r) * num_blocks + b;
      decode_block(*format_, data + block_index * format_->block_bytes, block);
      for (int i = 0; i < block_size; i += 4) {
        std::memcpy(&steps[i / kUnitCols][i % kUnitCols / 4][r * 4], &block.code[i], 4);
      }
      for (int g = 0; g < groups_per_block; ++g) {
        put(scales_, b * groups_per_block + g, r, block.scale[g]);
        if (format_->has_min) put(mins_, b * groups_per_block + g, r, block.min[g]);
      }
      if (is_super) {
        std::memcpy(base(super_scales_, tile) + (b * kTileRows + r) * 2, &block.super_scale, 2);
        if (format_->has_min) std::memcpy(base(super_mins_, tile) + (b * kTileRows + r) * 2, &block.super_min, 2);
      }
    }
    for (int u = 0; u < units_per_block; ++u) {
      pack_planes(format_->bits, steps[u],
                  base(codes_, tile) + static_cast<std::size_t>(b * units_per_block + u) * unit_bytes(*format_));
    }
  }
}

void PackedWeight::dequantize_float_row(std::int64_t row, float* out) const {
  const std::uint8_t* tile = codes(row / kTileRows);
  const std::int64_t lane = row % kTileRows;
  for (std::int64_t c = 0; c < cols_; ++c) {
    const std::int64_t at = c * kTileRows + lane;
    if (format_->type == BlockType::kF32) {
      std::memcpy(&out[c], tile + at * 4, 4);
    } else {
      std::uint16_t half;
      std::memcpy(&half, tile + at * 2, 2);
      out[c] = format_->type == BlockType::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
  }
}

void PackedWeight::dequantize_row(std::int64_t row, float* out) const {
  if (is_float()) return dequantize_float_row(row, out);
  const std::int64_t tile = row / kTileRows;
  const int lane = static_cast<int>(row % kTileRows);
  const bool is_super = format_->scale_kind == ScaleKind::kSuper;
  auto get = [&](const std::uint8_t* part, const std::uint16_t* super, std::int64_t col) {
    const std::int64_t at = col / format_->group * kTileRows + lane;
    if (is_super) {
      const auto small = static_cast<float>(static_cast<std::int8_t>(part[at]));
      return f16_to_f32(super[col / kSuperCols * kTileRows + lane]) * small;
    }
    std::uint16_t half;
    std::memcpy(&half, part + at * 2, 2);
    return f16_to_f32(half);
  };
  float scale = 0.0F;
  float min = 0.0F;
  for (std::int64_t c = 0; c < cols_; ++c) {
    if (c % format_->group == 0) {
      scale = get(scales(tile), super_scales(tile), c);
      if (format_->has_min) min = get(mins(tile), super_mins(tile), c);
    }
    const std::uint8_t* unit = codes(tile) + static_cast<std::size_t>(c / kUnitCols) * unit_bytes(*format_);
    const auto code = static_cast<int>(read_code(format_->bits, unit, lane, static_cast<int>(c % kUnitCols)));
    const float value = scale * static_cast<float>(code - format_->zero_point);
    out[c] = format_->has_min ? value + min : value;
  }
}

}  // namespace pelton

// A weight matrix in the tile layout that the kernels read. See quant/format.h for the layout.
#pragma once

#include <cstdint>

#include "base/aligned.h"
#include "base/thread_pool.h"
#include "quant/format.h"

namespace pelton {

// Immutable after construction.
class PackedWeight {
 public:
  // Packs `rows` x `cols` weights from `num_bytes` bytes of GGUF blocks at `data`, on all threads of `pool`.
  // Throws std::invalid_argument if the sizes do not agree.
  PackedWeight(std::uint32_t type, std::int64_t rows, std::int64_t cols, const std::uint8_t* data,
               std::size_t num_bytes, ThreadPool& pool);

  const PackedFormat& format() const { return *format_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t num_tiles() const { return (rows_ + kTileRows - 1) / kTileRows; }
  std::size_t num_bytes() const { return memory_.size(); }
  bool is_float() const { return format_->group == 0; }

  // Parts of one tile. A part that the format lacks must not be asked for.
  const std::uint8_t* codes(std::int64_t tile) const { return base(codes_, tile); }
  const std::uint8_t* scales(std::int64_t tile) const { return base(scales_, tile); }
  const std::uint8_t* mins(std::int64_t tile) const { return base(mins_, tile); }
  const std::uint16_t* super_scales(std::int64_t tile) const {
    return reinterpret_cast<const std::uint16_t*>(base(super_scales_, tile));
  }
  const std::uint16_t* super_mins(std::int64_t tile) const {
    return reinterpret_cast<const std::uint16_t*>(base(super_mins_, tile));
  }

  // Writes the float32 values of one row to out[cols].
  void dequantize_row(std::int64_t row, float* out) const;

 private:
  // One array of equal records, a record per tile.
  struct Part {
    std::size_t offset = 0;
    std::size_t tile_bytes = 0;
  };
  const std::uint8_t* base(const Part& part, std::int64_t tile) const {
    return memory_.data() + part.offset + static_cast<std::size_t>(tile) * part.tile_bytes;
  }
  std::uint8_t* base(const Part& part, std::int64_t tile) {
    return memory_.data() + part.offset + static_cast<std::size_t>(tile) * part.tile_bytes;
  }
  void lay_out();
  void pack_float_tile(std::int64_t tile, const std::uint8_t* data);
  void pack_affine_tile(std::int64_t tile, const std::uint8_t* data);
  void dequantize_float_row(std::int64_t row, float* out) const;

  const PackedFormat* format_;
  std::int64_t rows_;
  std::int64_t cols_;
  AlignedBuffer memory_;
  Part codes_, scales_, mins_, super_scales_, super_mins_;
};

}  // namespace pelton

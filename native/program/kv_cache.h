// The memory of the paged KV cache, committed by the kernel only as blocks are written. A block's layers lie together,
// so that a huge page holds whole blocks and few pages hold a short context.
#pragma once

#include <cstdint>

#include "base/aligned.h"
#include "ops/attention/attention.h"

namespace pelton {

class KvCache {
 public:
  // Throws std::invalid_argument for sizes below 1, std::bad_alloc if the address space is not to be had.
  KvCache(std::int64_t num_layers, std::int64_t num_kv_heads, std::int64_t head_dim, std::int64_t num_blocks,
          KvDtype dtype);

  std::int64_t num_layers() const { return num_layers_; }
  std::int64_t num_blocks() const { return num_blocks_; }
  // Bytes one block takes over all layers.
  std::int64_t bytes_per_block() const { return layer_.block_bytes; }

  // View of one layer; its block b starts at base + b * block_bytes.
  KvLayer layer(std::int64_t index) const;

  // Bytes of a block that hold something: its layers one after the other, without the gap to the next block.
  std::int64_t block_data_bytes() const { return num_layers_ * layer_bytes_; }
  // A whole block. std::invalid_argument for blocks that do not exist, or a number of bytes other than
  // block_data_bytes().
  void copy_block(std::int64_t source, std::int64_t target);
  const std::uint8_t* get_block(std::int64_t block) const;
  void set_block(std::int64_t block, const std::uint8_t* data, std::int64_t num_bytes);

 private:
  void check_block(std::int64_t block) const;

  std::int64_t num_layers_;
  std::int64_t num_blocks_;
  std::int64_t layer_bytes_ = 0;
  KvLayer layer_;
  AlignedBuffer memory_;
};

}  // namespace pelton

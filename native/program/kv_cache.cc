#include "program/kv_cache.h"

#include <cstring>
#include <string>

#include "base/check.h"

namespace pelton {

namespace {
constexpr std::int64_t kHalfPage = 2048;
}

KvCache::KvCache(std::int64_t num_layers, std::int64_t num_kv_heads, std::int64_t head_dim, std::int64_t num_blocks,
                 KvDtype dtype)
    : num_layers_(num_layers), num_blocks_(num_blocks) {
  check(num_layers >= 1 && num_layers <= 4096, "num_layers must be 1 to 4096");
  check(num_kv_heads >= 1 && num_kv_heads <= 4096, "num_kv_heads must be 1 to 4096");
  check(head_dim >= 1 && head_dim <= 4096, "head_dim must be 1 to 4096");
  check(num_blocks >= 1 && num_blocks <= INT32_MAX, "num_blocks must be 1 to 2^31-1");
  layer_ = make_kv_layout(num_kv_heads, head_dim, dtype);
  layer_bytes_ = layer_.padded_bytes();
  // An odd multiple of half a page: one head's keys of neighbouring blocks then lie in different sets of the first two
  // caches, which strides by a power of two would not.
  layer_.block_bytes = (num_layers * layer_bytes_ + kHalfPage - 1) / kHalfPage * kHalfPage;
  if (layer_.block_bytes / kHalfPage % 2 == 0) layer_.block_bytes += kHalfPage;
  const double total = static_cast<double>(bytes_per_block()) * static_cast<double>(num_blocks);
  check(total < 9e18, "the KV cache would exceed 2^63 bytes");
  memory_ = AlignedBuffer(static_cast<std::size_t>(bytes_per_block() * num_blocks), /*huge_pages=*/true);
}

KvLayer KvCache::layer(std::int64_t index) const {
  KvLayer view = layer_;
  // The cache owns the memory; a view of a const cache still writes K and V, as the executor is the only writer.
  view.base = const_cast<std::uint8_t*>(memory_.data()) + index * layer_bytes_;
  return view;
}

void KvCache::check_block(std::int64_t block) const {
  check(block >= 0 && block < num_blocks_,
        "block is " + std::to_string(block) + "; allowed: 0 to " + std::to_string(num_blocks_ - 1));
}

void KvCache::copy_block(std::int64_t source, std::int64_t target) {
  check_block(source);
  check_block(target);
  if (source == target) return;
  std::memcpy(memory_.data() + target * bytes_per_block(), memory_.data() + source * bytes_per_block(),
              static_cast<std::size_t>(block_data_bytes()));
}

const std::uint8_t* KvCache::get_block(std::int64_t block) const {
  check_block(block);
  return memory_.data() + block * bytes_per_block();
}

void KvCache::set_block(std::int64_t block, const std::uint8_t* data, std::int64_t num_bytes) {
  check_block(block);
  check(num_bytes == block_data_bytes(), "a block has " + std::to_string(block_data_bytes()) + " bytes, " +
                                             std::to_string(num_bytes) + " were given");
  std::memcpy(memory_.data() + block * bytes_per_block(), data, static_cast<std::size_t>(num_bytes));
}

}  // namespace pelton

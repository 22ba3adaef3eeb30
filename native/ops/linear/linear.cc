#include "ops/linear/linear.h"

#include <algorithm>

namespace pelton {

namespace {

std::size_t align64(std::size_t n) { return (n + 63) / 64 * 64; }

struct Sizes {
  std::size_t q, per32, per16;
};

std::int64_t get_block_tokens(std::int64_t num_tokens) { return std::min(num_tokens, kActTokens); }

Sizes get_sizes(std::int64_t num_tokens, std::int64_t cols) {
  const std::int64_t block_tokens = std::max<std::int64_t>(get_block_tokens(num_tokens), 1);
  const std::int64_t num_blocks = (num_tokens + block_tokens - 1) / block_tokens;
  const auto n = static_cast<std::size_t>(num_blocks * block_tokens * cols);
  return {align64(n), align64(n / 32 * 4), align64(n / 16 * 4)};
}

}  // namespace

std::size_t quant_acts_bytes(std::int64_t num_tokens, std::int64_t cols) {
  const Sizes s = get_sizes(num_tokens, cols);
  return s.q + 3 * s.per32 + 2 * s.per16;
}

QuantActs place_quant_acts(std::uint8_t* memory, std::int64_t num_tokens, std::int64_t cols) {
  const Sizes s = get_sizes(num_tokens, cols);
  QuantActs acts;
  acts.cols = cols;
  acts.block_tokens = get_block_tokens(num_tokens);
  auto take = [&memory](std::size_t n) {
    std::uint8_t* p = memory;
    memory += n;
    return p;
  };
  acts.q = reinterpret_cast<std::int8_t*>(take(s.q));
  acts.scale = reinterpret_cast<float*>(take(s.per32));
  acts.sum32 = reinterpret_cast<std::int32_t*>(take(s.per32));
  acts.scaled_sum32 = reinterpret_cast<float*>(take(s.per32));
  acts.sum16 = reinterpret_cast<std::int32_t*>(take(s.per16));
  acts.scaled_sum16 = reinterpret_cast<float*>(take(s.per16));
  return acts;
}

}  // namespace pelton

#include "sampling/mask.h"

#include <algorithm>
#include <cstddef>

namespace pelton::sampling {
namespace {

constexpr std::size_t kWordTokens = 32;

}  // namespace

bool apply_mask(LogitRow row, std::span<const std::uint32_t> mask, std::vector<float>& masked) {
  masked.resize(row.size());
  bool has_allowed = false;
  for (std::size_t start = 0; start < row.size(); start += kWordTokens) {
    const std::size_t count = std::min(kWordTokens, row.size() - start);
    const std::uint32_t in_row = count == kWordTokens ? ~0U : (1U << count) - 1U;
    const std::uint32_t word = mask[start / kWordTokens] & in_row;
    const float* from = row.data() + start;
    float* to = masked.data() + start;
    // Masks are mostly runs of words that allow nothing or everything.
    if (word == 0U) {
      std::fill_n(to, count, kMinusInf);
      continue;
    }
    has_allowed = true;
    if (word == in_row) {
      std::copy_n(from, count, to);
      continue;
    }
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = ((word >> i) & 1U) != 0U ? from[i] : kMinusInf;
    }
  }
  return has_allowed;
}

}  // namespace pelton::sampling

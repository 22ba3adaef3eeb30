// Which tokens are allowed at all, as one bit per token: the first thing applied to a row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/row_scan.h"

namespace pelton::sampling {

// masked[i] = row[i] where bit i % 32 of mask[i / 32] is set, else -inf. `mask` has words for the whole row; bits beyond
// it are ignored. False if no token is allowed.
bool apply_mask(LogitRow row, std::span<const std::uint32_t> mask, std::vector<float>& masked);

}  // namespace pelton::sampling

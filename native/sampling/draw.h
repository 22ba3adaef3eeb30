// The draw: argmax over the kept tokens of scaled logit + Gumbel noise, which is a sample of their softmax.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/filters.h"
#include "sampling/philox.h"
#include "sampling/row_scan.h"

namespace pelton::sampling {

// Token id with the largest scaled logit + noise among the kept, the lowest id among equals. Skips tokens only when
// the bounds of their noise prove that they cannot win. `maxima` as for `find_kept_set`.
std::int32_t draw_token(LogitRow row, const std::vector<float>& maxima, const Scaler& scaler, const KeptSet& kept,
                        const NoiseSource& noise);

}  // namespace pelton::sampling

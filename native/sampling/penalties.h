// The parameters that change single logits: logit_bias, repetition, presence and frequency penalty, DRY, in that order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/row_params.h"

namespace pelton::sampling {

// Changes `row` in place. `counts` is working memory: empty or as this function left it for the same vocabulary.
// Returns kTokenOutOfRange, with `row` unchanged, if an id lies outside the vocabulary.
RowStatus adjust_logits(std::span<float> row, const RowParams& params, std::vector<std::int32_t>& counts);

}  // namespace pelton::sampling

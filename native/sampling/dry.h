// DRY: a penalty for tokens that would go on repeating what prompt and output have already said.
//
// P. E. Weidmann, "DRY: A modern repetition penalty that reliably prevents looping", text-generation-webui, pull request
// 5677 (2024): multiplier * base^(L - allowed_length) is subtracted from a token that would extend a repeat of L tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/row_params.h"

namespace pelton::sampling {

// Changes `row` in place. The histories of `params` lie inside the vocabulary. `lengths` is working memory of the size
// of the row, all 0 before and after.
void penalize_repeats(std::span<float> row, const RowParams& params, std::vector<std::int32_t>& lengths);

}  // namespace pelton::sampling

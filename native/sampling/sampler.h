// Logits -> token ids. Start here: `sample_rows` does everything for the rows of one step.
//
// Order: mask, logit_bias, repetition penalty, presence and frequency penalty, DRY, temperature, top_k, top_p, min_p,
// typical_p, XTC, mirostat, draw.
// docs/sampling.md explains each with numbers. A row's result depends on its logits and parameters only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "sampling/row_params.h"

namespace pelton::sampling {

// One result per row of `logits` [params.size(), vocab_size]. vocab_size is 1 to kMaxVocabSize.
// Rows are dealt out to the threads of `pool` (nullptr: the caller's alone).
// Throws std::invalid_argument if a number of `params` is outside the range of SamplingParams.
std::vector<RowResult> sample_rows(const float* logits, std::size_t vocab_size, std::span<const RowParams> params,
                                   ThreadPool* pool = nullptr);

// token_ids[r] = id of the largest logit of row r, the lowest among equals; -1 if all are -inf or NaN.
void argmax_rows(const float* logits, std::size_t vocab_size, std::span<std::int32_t> token_ids);

}  // namespace pelton::sampling

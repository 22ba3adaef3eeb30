// Natural-log probabilities of a row of raw logits, in double precision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sampling/row_params.h"
#include "sampling/row_scan.h"

namespace pelton::sampling {

// Largest logit, and log of the sum of exp(logit - largest); if the largest is +inf, log of how many have it.
struct LogNormalizer {
  float max;
  double log_sum;

  // -inf for a token without probability, NaN included. `max` must be above -inf.
  [[nodiscard]] double get_logprob(float logit) const;
};

// `max` is the largest logit of `row`.
LogNormalizer find_log_normalizer(LogitRow row, float max);

// The `count` most likely tokens, best first, ties by lower id; tokens of probability 0 are left out.
std::vector<TokenLogprob> find_top_logprobs(LogitRow row, const std::vector<float>& maxima,
                                            const LogNormalizer& normalizer, std::size_t count);

// Log-probability of targets[r] and of the `count` most likely tokens under row r of `logits` [targets.size(),
// vocab_size]; status kNoCandidate for a row in which every logit is -inf or NaN. Targets lie inside the vocabulary.
std::vector<RowResult> find_token_logprobs(const float* logits, std::size_t vocab_size,
                                           std::span<const std::int32_t> targets, std::size_t count);

// logprobs[r] = log-probability of targets[r] under row r of `logits` [num_rows, vocab_size]; NaN for a row in which
// every logit is -inf or NaN. Targets lie inside the vocabulary.
void log_softmax_at(const float* logits, std::size_t vocab_size, std::span<const std::int32_t> targets,
                    std::span<double> logprobs);

}  // namespace pelton::sampling

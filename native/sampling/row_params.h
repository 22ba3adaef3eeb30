// What one row of logits is sampled with, and what comes of it: plain views and numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pelton::sampling {

struct LogitBias {
  std::int32_t token_id;
  double bias;
};

// Fields as in core/sampling_params.py. `num_logprobs` is -1 for none, 0 for the chosen token's only. The id lists are
// read only by the penalties that use them.
struct RowParams {
  double temperature = 1.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::uint64_t seed = 0;
  std::uint64_t position = 0;
  std::int32_t num_logprobs = -1;
  std::span<const LogitBias> logit_bias{};
  std::span<const std::int32_t> prompt_token_ids{};
  std::span<const std::int32_t> output_token_ids{};

  [[nodiscard]] bool adjusts_logits() const {
    return !logit_bias.empty() || repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
  }
};

enum class RowStatus : std::int32_t {
  kOk = 0,
  kNoCandidate = 1,      // every logit is -inf or NaN
  kTokenOutOfRange = 2,  // an id of the bias or the history lies outside the vocabulary
};

struct TokenLogprob {
  std::int32_t token_id;
  double logprob;
};

// `logprob` and `top` are set only if log-probabilities were asked for and the status is kOk.
struct RowResult {
  RowStatus status = RowStatus::kOk;
  std::int32_t token_id = -1;
  double logprob = 0.0;
  std::vector<TokenLogprob> top{};
};

}  // namespace pelton::sampling

// What one row of logits is sampled with, and what comes of it: plain views and numbers.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace pelton::sampling {

struct LogitBias {
  std::int32_t token_id;
  double bias;
};

// Fields as in core/sampling_params.py, named there with the prefix dry_.
struct DryParams {
  double multiplier = 0.0;
  double base = 1.75;
  std::int64_t allowed_length = 2;
  std::int64_t range = 0;
  std::span<const std::int32_t> breaker_token_ids{};  // ascending

  [[nodiscard]] bool is_on() const { return multiplier != 0.0; }
};

// Fields as in core/sampling_params.py. `mirostat_mu` is the bound on surprise in bits; NaN: mirostat is off.
struct WeighParams {
  double typical_p = 1.0;
  double xtc_probability = 0.0;
  double xtc_threshold = 0.1;
  double mirostat_mu = std::numeric_limits<double>::quiet_NaN();
  double mirostat_tau = 5.0;
  double mirostat_eta = 0.1;

  [[nodiscard]] bool has_mirostat() const { return mirostat_mu == mirostat_mu; }
  [[nodiscard]] bool is_on() const { return typical_p < 1.0 || xtc_probability > 0.0 || has_mirostat(); }
};

// Fields as in core/sampling_params.py. `num_logprobs` is -1 for none, 0 for the chosen token's only. The id lists are
// read only by the penalties that use them. `mask` has bit i % 32 of word i / 32 set if token i is allowed, and words
// for the whole vocabulary; empty: all are allowed.
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
  DryParams dry{};
  WeighParams weigh{};
  std::span<const std::uint32_t> mask{};

  [[nodiscard]] bool adjusts_logits() const {
    return !logit_bias.empty() || repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0 ||
           dry.is_on();
  }
};

enum class RowStatus : std::int32_t {
  kOk = 0,
  kNoCandidate = 1,      // every logit is -inf or NaN
  kTokenOutOfRange = 2,  // an id of the bias or the history lies outside the vocabulary
  kNothingAllowed = 3,   // the mask allows no token
};

struct TokenLogprob {
  std::int32_t token_id;
  double logprob;
};

// `logprob` and `top` are set only if log-probabilities were asked for and the status is kOk; `mirostat_mu` is the bound
// for the next token if mirostat is on.
struct RowResult {
  RowStatus status = RowStatus::kOk;
  std::int32_t token_id = -1;
  double logprob = 0.0;
  std::vector<TokenLogprob> top{};
  double mirostat_mu = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace pelton::sampling

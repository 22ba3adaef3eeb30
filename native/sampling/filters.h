// temperature, top_k, top_p and min_p as bounds on which tokens are kept; nothing is sorted or copied per token.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "sampling/row_params.h"
#include "sampling/row_scan.h"

namespace pelton::sampling {

// float32 logits do not resolve probabilities finer than about this, so a cumulative probability within it of top_p has
// reached top_p, and a token within it (relatively) of the min_p bound is kept. Makes 0.5 + 0.3 reach 0.8.
inline constexpr double kProbabilityTolerance = 1e-6;

// Logit -> (logit - max) / temperature: 0 for the largest, so that no temperature can overflow. `max` is finite; NaN
// stays NaN, which every comparison below rejects.
struct Scaler {
  float max;
  double temperature;

  [[nodiscard]] double scale(float logit) const {
    return (static_cast<double>(logit) - static_cast<double>(max)) / temperature;
  }
};

// The tokens that may be drawn: those ranked from `first` to `last`, with a scaled logit of at least `min_scaled`.
struct KeptSet {
  Candidate first{kPlusInf, -1};
  Candidate last{kMinusInf, -1};
  double min_scaled = -std::numeric_limits<double>::infinity();

  // Whether `token` is ranked at or before `last`: all that top_k and top_p ask for.
  [[nodiscard]] bool reaches(const Candidate& token) const { return !ranks_before(last, token); }
  [[nodiscard]] bool is_between(const Candidate& token) const { return reaches(token) && !ranks_before(token, first); }
};

// Apply top_k, then top_p, then min_p of `params`. `maxima` are the chunk maxima of `row`, the largest finite;
// `scratch` is working memory.
KeptSet find_kept_set(LogitRow row, const std::vector<float>& maxima, const Scaler& scaler, const RowParams& params,
                      std::vector<Candidate>& scratch);

}  // namespace pelton::sampling

// typical_p, XTC and mirostat: the filters that weigh all tokens kept so far against each other.
//
// Probabilities are those after temperature among the tokens that top_k, top_p, min_p and the filters before kept. Each
// keeps an interval of the ranking, because each compares a token's scaled logit with bounds.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/filters.h"
#include "sampling/philox.h"
#include "sampling/row_params.h"
#include "sampling/row_scan.h"

namespace pelton::sampling {

struct WeightedToken {
  Candidate token;
  double scaled;
  std::uint64_t mass;
};

// What the drawn token's surprise is measured by: log of the sum of exp(scaled logit) over the tokens kept before
// mirostat cut.
struct MirostatState {
  double log_sum;
};

// Narrow `kept` by typical_p, XTC and mirostat of `params`, in that order. At least one token stays. `maxima` as for
// `find_kept_set`; `tokens` is working memory.
MirostatState weigh_kept_set(LogitRow row, const std::vector<float>& maxima, const Scaler& scaler,
                             const WeighParams& params, const NoiseSource& noise, std::vector<WeightedToken>& tokens,
                             KeptSet& kept);

// Mirostat's bound for the next token after a token with this scaled logit was drawn (Basu et al. 2021, Algorithm 1:
// mu - eta * (surprise - tau), in bits).
double update_mirostat(const WeighParams& params, const MirostatState& state, double scaled);

}  // namespace pelton::sampling

#include "sampling/weigh.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "sampling/mass.h"
#include "sampling/portable_math.h"

namespace pelton::sampling {
namespace {

using Tokens = std::vector<WeightedToken>;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// The kept tokens in order of id.
void collect_tokens(LogitRow row, const std::vector<float>& maxima, const Scaler& scaler, const KeptSet& kept,
                    Tokens& tokens) {
  tokens.clear();
  for (std::size_t chunk = 0; chunk < maxima.size(); ++chunk) {
    if (maxima[chunk] < kept.last.value || !(scaler.scale(maxima[chunk]) >= kept.min_scaled)) {
      continue;
    }
    const auto [start, count, scaled, weights] = weigh_chunk(row, chunk, scaler);
    for (std::size_t i = 0; i < count; ++i) {
      const Candidate token{row[start + i], static_cast<std::int32_t>(start + i)};
      // NaN and -inf have no probability, whatever the other bounds say.
      if (scaled[i] > kMinusInfinity && scaled[i] >= kept.min_scaled && kept.is_between(token)) {
        tokens.push_back({token, scaled[i], has_mass(scaled[i]) ? to_mass(weights[i]) : 0U});
      }
    }
  }
}

std::uint64_t find_total_mass(const Tokens& tokens) {
  std::uint64_t total = 0;
  for (const WeightedToken& token : tokens) {
    total += token.mass;
  }
  return total;
}

// C. Meister, T. Pimentel, G. Wiher, R. Cotterell, "Locally typical sampling", TACL 2023 (arXiv 2202.00666), eq. 7 and 8.
// |-log p - H| is the distance of the scaled logit from its mean, as log of the sum cancels out. Tokens as near as the
// last one kept are kept too.
void keep_typical(double typical_p, Tokens& tokens) {
  const std::uint64_t total = find_total_mass(tokens);
  double weighted_sum = 0.0;
  for (const WeightedToken& token : tokens) {
    if (token.mass != 0U) {
      weighted_sum += static_cast<double>(token.mass) * token.scaled;
    }
  }
  const double mean = weighted_sum / static_cast<double>(total);
  const auto find_distance = [&](const WeightedToken& token) { return std::fabs(token.scaled - mean); };
  BucketMasses masses{};
  for (const WeightedToken& token : tokens) {
    if (token.mass != 0U) {
      masses[get_bucket(-find_distance(token))] += token.mass;
    }
  }
  const std::uint64_t target = find_target_mass(typical_p, total);
  const auto [bucket, mass_before] = find_reached_bucket(masses, target);
  Tokens near;
  for (const WeightedToken& token : tokens) {
    if (token.mass != 0U && get_bucket(-find_distance(token)) == bucket) {
      near.push_back(token);
    }
  }
  const WeightedToken last = find_last_by_mass(
      near.begin(), near.end(),
      [&](const WeightedToken& a, const WeightedToken& b) { return find_distance(a) < find_distance(b); },
      [](const WeightedToken& token) { return token.mass; }, target - mass_before);
  const double bound = find_distance(last);
  std::erase_if(tokens, [&](const WeightedToken& token) { return find_distance(token) > bound; });
}

// P. E. Weidmann, "Exclude Top Choices (XTC)", text-generation-webui, pull request 6335 (2024).
void exclude_top_choices(double threshold, Tokens& tokens) {
  const double total = static_cast<double>(find_total_mass(tokens));
  const double bound = (threshold - kProbabilityTolerance) * total;
  const WeightedToken* least = nullptr;
  for (const WeightedToken& token : tokens) {
    if (static_cast<double>(token.mass) >= bound && (least == nullptr || ranks_before(least->token, token.token))) {
      least = &token;
    }
  }
  if (least != nullptr) {
    const Candidate first = least->token;
    std::erase_if(tokens, [&](const WeightedToken& token) { return ranks_before(token.token, first); });
  }
}

// S. Basu et al., "Mirostat: a neural text decoding algorithm that directly controls perplexity", ICLR 2021, in the
// form without the estimate of Zipf's exponent ("mirostat 2"): drop what surprises more than mu bits.
void limit_surprise(double mu, double log_sum, Tokens& tokens) {
  double best = tokens.front().scaled;
  for (const WeightedToken& token : tokens) {
    best = std::max(best, token.scaled);
  }
  const double bound = std::min(log_sum - mu * kLn2, best);
  std::erase_if(tokens, [&](const WeightedToken& token) { return token.scaled < bound; });
}

void set_interval(const Tokens& tokens, KeptSet& kept) {
  const auto order = [](const WeightedToken& a, const WeightedToken& b) { return ranks_before(a.token, b.token); };
  const auto [first, last] = std::minmax_element(tokens.begin(), tokens.end(), order);
  kept.first = first->token;
  kept.last = last->token;
}

}  // namespace

MirostatState weigh_kept_set(LogitRow row, const std::vector<float>& maxima, const Scaler& scaler,
                             const WeighParams& params, const NoiseSource& noise, std::vector<WeightedToken>& tokens,
                             KeptSet& kept) {
  MirostatState state{0.0};
  const bool excludes = params.xtc_probability > 0.0 && noise.uniform(kXtcStream) < params.xtc_probability;
  if (!(params.typical_p < 1.0) && !excludes && !params.has_mirostat()) {
    return state;
  }
  collect_tokens(row, maxima, scaler, kept, tokens);
  if (params.typical_p < 1.0) {
    keep_typical(params.typical_p, tokens);
  }
  if (excludes) {
    exclude_top_choices(params.xtc_threshold, tokens);
  }
  if (params.has_mirostat()) {
    // XTC may leave only tokens without mass; their sum then counts as one unit.
    const double total = static_cast<double>(std::max(find_total_mass(tokens), std::uint64_t{1}));
    state.log_sum = log_positive(total / kMassUnits);
    limit_surprise(params.mirostat_mu, state.log_sum, tokens);
  }
  set_interval(tokens, kept);
  return state;
}

double update_mirostat(const WeighParams& params, const MirostatState& state, double scaled) {
  const double surprise = (state.log_sum - scaled) * kLog2E;
  return params.mirostat_mu - params.mirostat_eta * (surprise - params.mirostat_tau);
}

}  // namespace pelton::sampling

#include "sampling/logprobs.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "sampling/portable_math.h"

namespace pelton::sampling {
namespace {

// Independent partial sums, added at the end in index order. With 32, GCC vectorises the loops over lanes.
constexpr std::size_t kLanes = 32;

// Sum of exp(logit - max) for finite max, NaN and -inf adding nothing.
double sum_exp(LogitRow row, float max) {
  const double shift = static_cast<double>(max);
  std::array<double, kLanes> sums{};
  std::array<double, kLanes> terms;
  std::size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      terms[lane] = static_cast<double>(row[i + lane]) - shift;
    }
    exp_nonpositive(terms);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += terms[lane];
    }
  }
  double total = std::accumulate(sums.begin(), sums.end(), 0.0);
  for (; i < row.size(); ++i) {
    total += exp_nonpositive(static_cast<double>(row[i]) - shift);
  }
  return total;
}

}  // namespace

double LogNormalizer::get_logprob(float logit) const {
  if (logit == max) {
    return 0.0 - log_sum;
  }
  if (!(logit > kMinusInf) || max == kPlusInf) {
    return -std::numeric_limits<double>::infinity();
  }
  return static_cast<double>(logit) - static_cast<double>(max) - log_sum;
}

LogNormalizer find_log_normalizer(LogitRow row, float max) {
  const double sum = max == kPlusInf ? static_cast<double>(std::count(row.begin(), row.end(), kPlusInf))
                                     : sum_exp(row, max);
  return {max, log_positive(sum)};
}

std::vector<TokenLogprob> find_top_logprobs(LogitRow row, const std::vector<float>& maxima,
                                            const LogNormalizer& normalizer, std::size_t count) {
  std::vector<Candidate> best;
  find_best_tokens(row, maxima, count, best);
  std::sort(best.begin(), best.end(), ranks_before);
  std::vector<TokenLogprob> top;
  top.reserve(best.size());
  for (const Candidate& token : best) {
    const double logprob = normalizer.get_logprob(token.value);
    if (logprob > -std::numeric_limits<double>::infinity()) {
      top.push_back({token.id, logprob});
    }
  }
  return top;
}

std::vector<RowResult> find_token_logprobs(const float* logits, std::size_t vocab_size,
                                           std::span<const std::int32_t> targets, std::size_t count) {
  std::vector<RowResult> results(targets.size());
  std::vector<float> maxima;
  for (std::size_t r = 0; r < targets.size(); ++r) {
    const LogitRow row(logits + r * vocab_size, vocab_size);
    find_chunk_maxima(row, maxima);
    const float max = *std::max_element(maxima.begin(), maxima.end());
    results[r].token_id = targets[r];
    if (max == kMinusInf) {
      results[r].status = RowStatus::kNoCandidate;
      continue;
    }
    const LogNormalizer normalizer = find_log_normalizer(row, max);
    results[r].logprob = normalizer.get_logprob(row[static_cast<std::size_t>(targets[r])]);
    results[r].top = find_top_logprobs(row, maxima, normalizer, count);
  }
  return results;
}

void log_softmax_at(const float* logits, std::size_t vocab_size, std::span<const std::int32_t> targets,
                    std::span<double> logprobs) {
  for (std::size_t r = 0; r < targets.size(); ++r) {
    const LogitRow row(logits + r * vocab_size, vocab_size);
    const std::int32_t best = find_argmax(row);
    if (best < 0) {
      logprobs[r] = std::numeric_limits<double>::quiet_NaN();
      continue;
    }
    const LogNormalizer normalizer = find_log_normalizer(row, row[static_cast<std::size_t>(best)]);
    logprobs[r] = normalizer.get_logprob(row[static_cast<std::size_t>(targets[r])]);
  }
}

}  // namespace pelton::sampling

#include "sampling/sampler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <stdexcept>

#include "sampling/draw.h"
#include "sampling/filters.h"
#include "sampling/logprobs.h"
#include "sampling/mask.h"
#include "sampling/penalties.h"
#include "sampling/philox.h"
#include "sampling/row_scan.h"
#include "sampling/weigh.h"

namespace pelton::sampling {
namespace {

// Working memory of a thread, reused over the rows it samples.
struct Scratch {
  std::vector<float> adjusted{};
  std::vector<std::int32_t> counts{};
  std::vector<float> finite{};
  std::vector<float> maxima{};
  std::vector<Candidate> candidates{};
  std::vector<WeightedToken> weighted{};
};

using Require = void (*)(bool is_allowed, const char* message);

void check_dry(const DryParams& dry, Require require) {
  require(dry.multiplier >= 0.0 && std::isfinite(dry.multiplier), "dry_multiplier: allowed: 0 or more, finite");
  require(dry.base >= 1.0 && std::isfinite(dry.base), "dry_base: allowed: 1 or more, finite");
  require(dry.allowed_length >= 1, "dry_allowed_length: allowed: 1 or more");
}

void check_weigh(const WeighParams& weigh, Require require) {
  require(weigh.typical_p > 0.0 && weigh.typical_p <= 1.0, "typical_p: allowed: more than 0, at most 1");
  require(weigh.xtc_probability >= 0.0 && weigh.xtc_probability <= 1.0, "xtc_probability: allowed: 0 to 1");
  require(weigh.xtc_threshold >= 0.0 && weigh.xtc_threshold <= 1.0, "xtc_threshold: allowed: 0 to 1");
  require(std::isfinite(weigh.mirostat_tau), "mirostat_tau: allowed: finite numbers");
  require(std::isfinite(weigh.mirostat_eta), "mirostat_eta: allowed: finite numbers");
}

// Raises std::invalid_argument for numbers that the arithmetic below does not allow; ranges as in SamplingParams.
void check_params(const RowParams& params) {
  const Require require = [](bool is_allowed, const char* message) {
    if (!is_allowed) {
      throw std::invalid_argument(message);
    }
  };
  require(params.temperature >= 0.0 && std::isfinite(params.temperature), "temperature: allowed: 0 or more, finite");
  require(params.top_p > 0.0 && params.top_p <= 1.0, "top_p: allowed: more than 0, at most 1");
  require(params.min_p >= 0.0 && params.min_p <= 1.0, "min_p: allowed: 0 to 1");
  require(params.repetition_penalty > 0.0 && std::isfinite(params.repetition_penalty),
          "repetition_penalty: allowed: more than 0, finite");
  require(std::isfinite(params.presence_penalty), "presence_penalty: allowed: finite numbers");
  require(std::isfinite(params.frequency_penalty), "frequency_penalty: allowed: finite numbers");
  check_dry(params.dry, require);
  check_weigh(params.weigh, require);
}

float find_row_maximum(LogitRow row, std::vector<float>& maxima) {
  find_chunk_maxima(row, maxima);
  return *std::max_element(maxima.begin(), maxima.end());
}

// The limit of a softmax with infinite logits: those tokens share all probability.
void share_among_infinite(LogitRow row, std::vector<float>& finite) {
  finite.resize(row.size());
  std::transform(row.begin(), row.end(), finite.begin(), [](float x) { return x == kPlusInf ? 0.0F : kMinusInf; });
}

// Sets token id (-1 if none has a probability) and mirostat's next bound from a row of adjusted logits.
void choose_token(LogitRow row, const RowParams& params, Scratch& scratch, RowResult& result) {
  result.mirostat_mu = params.weigh.mirostat_mu;
  if (params.temperature == 0.0) {
    result.token_id = find_argmax(row);
    return;
  }
  float max = find_row_maximum(row, scratch.maxima);
  if (max == kMinusInf) {
    return;
  }
  if (max == kPlusInf) {
    share_among_infinite(row, scratch.finite);
    row = scratch.finite;
    max = find_row_maximum(row, scratch.maxima);
  }
  const Scaler scaler{max, params.temperature};
  const NoiseSource noise{params.seed, params.position};
  KeptSet kept = find_kept_set(row, scratch.maxima, scaler, params, scratch.candidates);
  MirostatState state{};
  if (params.weigh.is_on()) {
    state = weigh_kept_set(row, scratch.maxima, scaler, params.weigh, noise, scratch.weighted, kept);
  }
  result.token_id = draw_token(row, scratch.maxima, scaler, kept, noise);
  if (params.weigh.has_mirostat()) {
    const double scaled = scaler.scale(row[static_cast<std::size_t>(result.token_id)]);
    result.mirostat_mu = update_mirostat(params.weigh, state, scaled);
  }
}

// Log-probabilities come from the raw row, whatever the parameters changed.
void add_logprobs(LogitRow raw, const RowParams& params, Scratch& scratch, RowResult& result) {
  const float max = find_row_maximum(raw, scratch.maxima);
  const LogNormalizer normalizer = find_log_normalizer(raw, max);
  result.logprob = normalizer.get_logprob(raw[static_cast<std::size_t>(result.token_id)]);
  result.top =
      find_top_logprobs(raw, scratch.maxima, normalizer, static_cast<std::size_t>(params.num_logprobs));
}

RowResult sample_row(LogitRow raw, const RowParams& params, Scratch& scratch) {
  RowResult result;
  LogitRow row = raw;
  if (!params.mask.empty()) {
    if (!apply_mask(raw, params.mask, scratch.adjusted)) {
      result.status = RowStatus::kNothingAllowed;
      return result;
    }
    row = scratch.adjusted;
  }
  if (params.adjusts_logits()) {
    if (params.mask.empty()) {
      scratch.adjusted.assign(raw.begin(), raw.end());
    }
    result.status = adjust_logits(scratch.adjusted, params, scratch.counts);
    if (result.status != RowStatus::kOk) {
      return result;
    }
    row = scratch.adjusted;
  }
  choose_token(row, params, scratch, result);
  if (result.token_id < 0) {
    result.status = RowStatus::kNoCandidate;
  } else if (params.num_logprobs >= 0) {
    add_logprobs(raw, params, scratch, result);
  }
  return result;
}

// Calls body(row, scratch) for every row in [0, num_rows) on all threads of `pool`; rethrows what one of them threw.
template <typename Body>
void for_each_row(ThreadPool& pool, std::size_t num_rows, Body body) {
  std::atomic<std::size_t> next{0};
  std::mutex error_mutex;
  std::exception_ptr error;
  pool.run([&](int) {
    try {
      Scratch scratch;
      for (std::size_t row = next++; row < num_rows; row = next++) {
        body(row, scratch);
      }
    } catch (...) {  // memory that cannot be had; a region's body must not throw
      next = num_rows;
      const std::lock_guard lock(error_mutex);
      error = std::current_exception();
    }
  });
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace

std::vector<RowResult> sample_rows(const float* logits, std::size_t vocab_size, std::span<const RowParams> params,
                                   ThreadPool* pool) {
  std::for_each(params.begin(), params.end(), check_params);
  std::vector<RowResult> results(params.size());
  const auto sample = [&](std::size_t r, Scratch& scratch) {
    results[r] = sample_row(LogitRow(logits + r * vocab_size, vocab_size), params[r], scratch);
  };
  if (pool != nullptr && params.size() > 1) {
    for_each_row(*pool, params.size(), sample);
    return results;
  }
  Scratch scratch;
  for (std::size_t r = 0; r < params.size(); ++r) {
    sample(r, scratch);
  }
  return results;
}

void argmax_rows(const float* logits, std::size_t vocab_size, std::span<std::int32_t> token_ids) {
  for (std::size_t r = 0; r < token_ids.size(); ++r) {
    token_ids[r] = find_argmax(LogitRow(logits + r * vocab_size, vocab_size));
  }
}

}  // namespace pelton::sampling

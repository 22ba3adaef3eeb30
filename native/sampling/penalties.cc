#include "sampling/penalties.h"

#include <algorithm>
#include <cstddef>

#include "sampling/dry.h"

namespace pelton::sampling {
namespace {

using Ids = std::span<const std::int32_t>;

bool are_in_range(Ids ids, std::size_t vocab_size) {
  return std::all_of(ids.begin(), ids.end(),
                     [&](std::int32_t id) { return id >= 0 && static_cast<std::size_t>(id) < vocab_size; });
}

void add_bias(std::span<float> row, std::span<const LogitBias> biases) {
  for (const LogitBias& bias : biases) {
    float& logit = row[static_cast<std::size_t>(bias.token_id)];
    logit = static_cast<float>(static_cast<double>(logit) + bias.bias);
  }
}

// Keskar et al. 2019 (CTRL), section 4.1, with the sign-aware form of common use. Once per distinct token: `seen`
// marks those done.
void penalize_repetition(std::span<float> row, Ids ids, double penalty, std::vector<std::int32_t>& seen) {
  for (const std::int32_t token_id : ids) {
    const auto id = static_cast<std::size_t>(token_id);
    if (seen[id] != 0) {
      continue;
    }
    seen[id] = 1;
    const double logit = static_cast<double>(row[id]);
    row[id] = static_cast<float>(logit > 0.0 ? logit / penalty : logit * penalty);
  }
}

void clear_counts(Ids ids, std::vector<std::int32_t>& counts) {
  for (const std::int32_t token_id : ids) {
    counts[static_cast<std::size_t>(token_id)] = 0;
  }
}

void penalize_output(std::span<float> row, const RowParams& params, std::vector<std::int32_t>& counts) {
  for (const std::int32_t token_id : params.output_token_ids) {
    ++counts[static_cast<std::size_t>(token_id)];
  }
  for (const std::int32_t token_id : params.output_token_ids) {
    const auto id = static_cast<std::size_t>(token_id);
    if (counts[id] != 0) {
      const double penalty =
          params.presence_penalty + params.frequency_penalty * static_cast<double>(counts[id]);
      row[id] = static_cast<float>(static_cast<double>(row[id]) - penalty);
      counts[id] = 0;
    }
  }
}

}  // namespace

RowStatus adjust_logits(std::span<float> row, const RowParams& params, std::vector<std::int32_t>& counts) {
  const bool has_repetition = params.repetition_penalty != 1.0;
  const bool has_output = params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
  for (const LogitBias& bias : params.logit_bias) {
    if (!are_in_range(Ids(&bias.token_id, 1), row.size())) {
      return RowStatus::kTokenOutOfRange;
    }
  }
  const bool reads_prompt = has_repetition || params.dry.is_on();
  if ((reads_prompt && !are_in_range(params.prompt_token_ids, row.size())) ||
      ((reads_prompt || has_output) && !are_in_range(params.output_token_ids, row.size()))) {
    return RowStatus::kTokenOutOfRange;
  }
  counts.resize(row.size());
  add_bias(row, params.logit_bias);
  if (has_repetition) {
    penalize_repetition(row, params.prompt_token_ids, params.repetition_penalty, counts);
    penalize_repetition(row, params.output_token_ids, params.repetition_penalty, counts);
    clear_counts(params.prompt_token_ids, counts);
    clear_counts(params.output_token_ids, counts);
  }
  if (has_output) {
    penalize_output(row, params, counts);
  }
  if (params.dry.is_on()) {
    penalize_repeats(row, params, counts);
  }
  return RowStatus::kOk;
}

}  // namespace pelton::sampling

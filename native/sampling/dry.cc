#include "sampling/dry.h"

#include <algorithm>
#include <cstddef>

namespace pelton::sampling {
namespace {

using Ids = std::vector<std::int32_t>;

// Above this no float32 logit stays finite; it ends the multiplication long before a double overflows.
constexpr double kMaxPenalty = 1e100;

// The last `dry.range` tokens of prompt and output, the newest first.
Ids find_newest_first(const RowParams& params) {
  Ids newest(params.output_token_ids.rbegin(), params.output_token_ids.rend());
  newest.insert(newest.end(), params.prompt_token_ids.rbegin(), params.prompt_token_ids.rend());
  if (params.dry.range > 0 && static_cast<std::uint64_t>(params.dry.range) < newest.size()) {
    newest.resize(static_cast<std::size_t>(params.dry.range));
  }
  return newest;
}

bool is_breaker(const DryParams& dry, std::int32_t token_id) {
  return std::binary_search(dry.breaker_token_ids.begin(), dry.breaker_token_ids.end(), token_id);
}

// result[k] = number of equal elements of `ids` and of `ids` from k on (the Z function; Gusfield 1997, section 1.4);
// result[0] is 0.
std::vector<std::size_t> find_match_lengths(const Ids& ids) {
  std::vector<std::size_t> lengths(ids.size());
  std::size_t start = 0;
  std::size_t end = 0;
  for (std::size_t k = 1; k < ids.size(); ++k) {
    std::size_t length = k < end ? std::min(end - k, lengths[k - start]) : 0;
    while (k + length < ids.size() && ids[length] == ids[k + length]) {
      ++length;
    }
    if (k + length > end) {
      start = k;
      end = k + length;
    }
    lengths[k] = length;
  }
  return lengths;
}

double find_penalty(const DryParams& dry, std::int64_t length) {
  double penalty = dry.multiplier;
  // At base 1 the product stays where it is.
  for (std::int64_t n = dry.allowed_length; n < length && penalty < kMaxPenalty && dry.base != 1.0; ++n) {
    penalty *= dry.base;
  }
  return penalty;
}

}  // namespace

void penalize_repeats(std::span<float> row, const RowParams& params, std::vector<std::int32_t>& lengths) {
  const DryParams& dry = params.dry;
  const Ids newest = find_newest_first(params);
  const auto first_breaker =
      std::find_if(newest.begin(), newest.end(), [&](std::int32_t id) { return is_breaker(dry, id); });
  const auto max_length = static_cast<std::int64_t>(first_breaker - newest.begin());
  if (max_length < dry.allowed_length) {
    return;
  }
  const std::vector<std::size_t> matches = find_match_lengths(newest);
  // The match of length matches[k] ends at the token before newest[k - 1], which therefore would repeat itself.
  for (std::size_t k = 1; k < newest.size(); ++k) {
    const std::int64_t length = std::min(static_cast<std::int64_t>(matches[k]), max_length);
    if (length >= dry.allowed_length && !is_breaker(dry, newest[k - 1])) {
      std::int32_t& longest = lengths[static_cast<std::size_t>(newest[k - 1])];
      longest = std::max(longest, static_cast<std::int32_t>(length));
    }
  }
  for (const std::int32_t token_id : newest) {
    const auto id = static_cast<std::size_t>(token_id);
    if (lengths[id] != 0) {
      row[id] = static_cast<float>(static_cast<double>(row[id]) - find_penalty(dry, lengths[id]));
      lengths[id] = 0;
    }
  }
}

}  // namespace pelton::sampling

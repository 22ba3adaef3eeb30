#include "sampling/row_scan.h"

#include <algorithm>
#include <array>
#include <functional>

namespace pelton::sampling {
namespace {

// Independent running maxima. With 32, GCC vectorises the loop over lanes; shorter ones it unrolls into scalars.
constexpr std::size_t kLanes = 32;

// Tokens per chunk of the greedy pass: long enough to hide the reduction over lanes, short enough to search again.
constexpr std::size_t kArgmaxChunkTokens = 1024;

// Largest value of a chunk. A comparison with NaN is false, which leaves NaN out.
float find_max(const float* values, std::size_t count) {
  std::array<float, kLanes> lane_max;
  lane_max.fill(kMinusInf);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float x = values[i + lane];
      lane_max[lane] = x > lane_max[lane] ? x : lane_max[lane];
    }
  }
  float result = kMinusInf;
  for (const float x : lane_max) {
    result = x > result ? x : result;
  }
  for (; i < count; ++i) {
    result = values[i] > result ? values[i] : result;
  }
  return result;
}

}  // namespace

std::int32_t find_argmax(LogitRow row) {
  float best = kMinusInf;
  std::size_t best_start = 0;
  for (std::size_t start = 0; start < row.size(); start += kArgmaxChunkTokens) {
    const std::size_t count = std::min(kArgmaxChunkTokens, row.size() - start);
    const float chunk_max = find_max(row.data() + start, count);
    if (chunk_max > best) {
      best = chunk_max;
      best_start = start;
    }
  }
  if (best == kMinusInf) {
    return -1;
  }
  std::size_t id = best_start;
  while (row[id] != best) {
    ++id;
  }
  return static_cast<std::int32_t>(id);
}

void find_chunk_maxima(LogitRow row, std::vector<float>& maxima) {
  const std::size_t num_chunks = (row.size() + kChunkTokens - 1) / kChunkTokens;
  maxima.resize(num_chunks);
  for (std::size_t chunk = 0; chunk < num_chunks; ++chunk) {
    const std::size_t start = chunk * kChunkTokens;
    maxima[chunk] = find_max(row.data() + start, std::min(kChunkTokens, row.size() - start));
  }
}

void find_best_tokens(LogitRow row, const std::vector<float>& maxima, std::size_t count,
                      std::vector<Candidate>& best) {
  best.clear();
  if (count == 0) {
    return;
  }
  // `count` chunks have a maximum of at least `bound`, so no token below it is among the best.
  float bound = kMinusInf;
  if (count <= maxima.size()) {
    std::vector<float> ranked = maxima;
    const auto nth = ranked.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(ranked.begin(), nth, ranked.end(), std::greater<>());
    bound = *nth;
  }
  for (std::size_t chunk = 0; chunk < maxima.size(); ++chunk) {
    if (maxima[chunk] < bound) {
      continue;
    }
    const std::size_t end = std::min((chunk + 1) * kChunkTokens, row.size());
    for (std::size_t id = chunk * kChunkTokens; id < end; ++id) {
      if (row[id] >= bound && row[id] > kMinusInf) {
        best.push_back({row[id], static_cast<std::int32_t>(id)});
      }
    }
  }
  if (best.empty()) {
    return;
  }
  const std::size_t kept = std::min(count, best.size());
  std::nth_element(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(kept - 1), best.end(), ranks_before);
  best.resize(kept);
}

}  // namespace pelton::sampling

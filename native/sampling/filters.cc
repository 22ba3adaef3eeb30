#include "sampling/filters.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "sampling/mass.h"
#include "sampling/portable_math.h"

namespace pelton::sampling {
namespace {

// Total mass of the kept tokens in each bucket.
BucketMasses find_bucket_masses(LogitRow row, const std::vector<float>& maxima, const Scaler& scaler,
                                const KeptSet& kept) {
  BucketMasses bucket_masses{};
  for (std::size_t chunk = 0; chunk < maxima.size(); ++chunk) {
    if (maxima[chunk] < kept.last.value || !has_mass(scaler.scale(maxima[chunk]))) {
      continue;
    }
    const auto [start, count, scaled, weights] = weigh_chunk(row, chunk, scaler);
    for (std::size_t i = 0; i < count; ++i) {
      if (has_mass(scaled[i]) && kept.reaches({row[start + i], static_cast<std::int32_t>(start + i)})) {
        bucket_masses[get_bucket(scaled[i])] += to_mass(weights[i]);
      }
    }
  }
  return bucket_masses;
}

// The kept tokens of one bucket, in order of id.
void find_bucket_tokens(LogitRow row, const std::vector<float>& maxima, const Scaler& scaler, const KeptSet& kept,
                        std::size_t bucket, std::vector<Candidate>& tokens) {
  tokens.clear();
  // Half a bucket wider, which rounding cannot bridge: a quick test before the exact one.
  const double width = scaler.temperature / kBucketsPerUnit;
  const double high = static_cast<double>(scaler.max) - width * (static_cast<double>(bucket) - 0.5);
  const double low = static_cast<double>(scaler.max) - width * (static_cast<double>(bucket) + 1.5);
  for (std::size_t chunk = 0; chunk < maxima.size(); ++chunk) {
    if (maxima[chunk] < kept.last.value || static_cast<double>(maxima[chunk]) < low) {
      continue;
    }
    const std::size_t end = std::min((chunk + 1) * kChunkTokens, row.size());
    for (std::size_t id = chunk * kChunkTokens; id < end; ++id) {
      const Candidate token{row[id], static_cast<std::int32_t>(id)};
      if (static_cast<double>(token.value) < low || static_cast<double>(token.value) > high) {
        continue;
      }
      const double scaled = scaler.scale(token.value);
      if (has_mass(scaled) && get_bucket(scaled) == bucket && kept.reaches(token)) {
        tokens.push_back(token);
      }
    }
  }
}

void apply_top_k(LogitRow row, const std::vector<float>& maxima, std::int64_t top_k, std::vector<Candidate>& scratch,
                 KeptSet& kept) {
  const auto count = static_cast<std::size_t>(top_k);
  find_best_tokens(row, maxima, count, scratch);
  if (scratch.size() == count) {
    kept.last = scratch.back();
  }
}

void apply_top_p(LogitRow row, const std::vector<float>& maxima, const Scaler& scaler, double top_p,
                 std::vector<Candidate>& scratch, KeptSet& kept) {
  const BucketMasses bucket_masses = find_bucket_masses(row, maxima, scaler, kept);
  const std::uint64_t total = std::accumulate(bucket_masses.begin(), bucket_masses.end(), std::uint64_t{0});
  const std::uint64_t target = find_target_mass(top_p, total);
  const auto [bucket, mass_before] = find_reached_bucket(bucket_masses, target);
  find_bucket_tokens(row, maxima, scaler, kept, bucket, scratch);
  const auto find_mass = [&](const Candidate& token) { return get_mass(scaler.scale(token.value)); };
  kept.last = find_last_by_mass(scratch.begin(), scratch.end(), ranks_before, find_mass, target - mass_before);
}

}  // namespace

KeptSet find_kept_set(LogitRow row, const std::vector<float>& maxima, const Scaler& scaler, const RowParams& params,
                      std::vector<Candidate>& scratch) {
  KeptSet kept;
  if (params.top_k > 0 && static_cast<std::uint64_t>(params.top_k) < row.size()) {
    apply_top_k(row, maxima, params.top_k, scratch, kept);
  }
  if (params.top_p < 1.0) {
    apply_top_p(row, maxima, scaler, params.top_p, scratch, kept);
  }
  if (params.min_p > 0.0) {
    kept.min_scaled = log_positive(params.min_p) - kProbabilityTolerance;
  }
  return kept;
}

}  // namespace pelton::sampling

// Probability masses as integers, so that their sums do not depend on the order of tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "sampling/filters.h"
#include "sampling/portable_math.h"

namespace pelton::sampling {

// Units are 2^-40 of the most likely token's probability. The rounding of a whole vocabulary stays far below
// kProbabilityTolerance.
inline constexpr double kMassUnits = 0x1p40;

// Tokens below this scaled logit have mass 0: exp(-29) * 2^40 < 1/2.
inline constexpr double kMinScaledWithMass = -29.0;

inline bool has_mass(double scaled) { return scaled > kMinScaledWithMass; }

// Through signed integers, to which conversion is one instruction.
inline std::uint64_t to_mass(double weight) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(weight * kMassUnits + 0.5));
}

// Scaled logits and their exponentials of `count` tokens from id `start` on; one call of exp for all of them.
struct ChunkWeights {
  std::size_t start;
  std::size_t count;
  std::array<double, kChunkTokens> scaled{};
  std::array<double, kChunkTokens> weights;
};

inline ChunkWeights weigh_chunk(LogitRow row, std::size_t chunk, const Scaler& scaler) {
  ChunkWeights result;
  result.start = chunk * kChunkTokens;
  result.count = std::min(kChunkTokens, row.size() - result.start);
  for (std::size_t i = 0; i < result.count; ++i) {
    result.scaled[i] = scaler.scale(row[result.start + i]);
  }
  result.weights = result.scaled;
  exp_nonpositive(result.weights);
  return result;
}

// For a scaled logit that has mass.
inline std::uint64_t get_mass(double scaled) { return to_mass(exp_nonpositive(scaled)); }

// Masses are added by ranges of scaled logit 1/32 wide, best first; only the range where a sum is reached is searched.
inline constexpr double kBucketsPerUnit = 32.0;
inline constexpr std::size_t kNumBuckets = 929;
using BucketMasses = std::array<std::uint64_t, kNumBuckets>;

// For a scaled logit that has mass, or minus a distance between two of them.
inline std::size_t get_bucket(double scaled) {
  return static_cast<std::size_t>(static_cast<std::int64_t>(-scaled * kBucketsPerUnit));
}

// The first bucket by which `target` is reached, and the mass before it.
struct ReachedBucket {
  std::size_t bucket;
  std::uint64_t mass_before;
};

inline ReachedBucket find_reached_bucket(const BucketMasses& masses, std::uint64_t target) {
  ReachedBucket reached{0, 0};
  while (reached.mass_before + masses[reached.bucket] < target) {
    reached.mass_before += masses[reached.bucket];
    ++reached.bucket;
  }
  return reached;
}

// Mass that counts as having reached probability `p` of `total`; at least 1, so that one token is always kept.
inline std::uint64_t find_target_mass(double p, std::uint64_t total) {
  const double wanted = std::max((p - kProbabilityTolerance) * static_cast<double>(total), 1.0);
  return std::min(static_cast<std::uint64_t>(wanted), total);
}

// Last element of the shortest prefix, in the order `comes_before`, whose mass reaches `target`. Splits by median and
// goes on in the half where the target is reached, so the work is linear. The range is not empty and is reordered.
template <typename Iterator, typename Order, typename FindMass>
auto find_last_by_mass(Iterator begin, Iterator end, Order comes_before, FindMass find_mass, std::uint64_t target) {
  // Below this many elements sorting is quicker than splitting again.
  constexpr std::ptrdiff_t kSortElements = 64;
  std::uint64_t mass_before = 0;
  while (end - begin > kSortElements) {
    const Iterator middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, comes_before);
    std::uint64_t mass = mass_before;
    for (Iterator element = begin; element != middle; ++element) {
      mass += find_mass(*element);
    }
    if (mass >= target) {
      end = middle;
    } else {
      mass_before = mass;
      begin = middle;
    }
  }
  std::sort(begin, end, comes_before);
  Iterator element = begin;
  for (; element + 1 != end; ++element) {
    mass_before += find_mass(*element);
    if (mass_before >= target) {
      break;
    }
  }
  return *element;
}

}  // namespace pelton::sampling

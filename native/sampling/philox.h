// Random noise that is a pure function of (seed, output position, token id): no state, so no order of calls.
//
// Philox4x32-10: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011, section 3.3. Key = seed (low word, high word). Counter = (token id / 4, 0, position low word, position high
// word); word token id % 4 of the result belongs to the token. The second word of the counter is the stream: 0 for the
// draw, others for other decisions with the same seed (kXtcStream).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sampling/portable_math.h"

namespace pelton::sampling {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53U;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57U;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9U;
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85U;
inline constexpr int kPhiloxRounds = 10;

// Stream of the one random number that XTC takes at a position: word 0 of counter (0, kXtcStream, position).
inline constexpr std::uint32_t kXtcStream = 1U;

inline std::uint32_t low_word(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
inline std::uint32_t high_word(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32U); }

inline PhiloxCounter philox4x32(PhiloxCounter c, PhiloxKey k) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * c[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * c[2];
    c = {high_word(product1) ^ c[1] ^ k[0], low_word(product1), high_word(product0) ^ c[3] ^ k[1],
         low_word(product0)};
    k[0] += kPhiloxWeyl0;
    k[1] += kPhiloxWeyl1;
  }
  return c;
}

// Noise of one sampled row.
struct NoiseSource {
  std::uint64_t seed;
  std::uint64_t position;

  [[nodiscard]] PhiloxKey key() const { return {low_word(seed), high_word(seed)}; }

  // The random word of one token.
  [[nodiscard]] std::uint32_t word(std::uint32_t token_id) const {
    return philox4x32({token_id / 4U, 0U, low_word(position), high_word(position)}, key())[token_id % 4U];
  }

  // Random number in (0, 1) of a stream other than the draw's.
  [[nodiscard]] double uniform(std::uint32_t stream) const {
    const std::uint32_t word = philox4x32({0U, stream, low_word(position), high_word(position)}, key())[0];
    return (static_cast<double>(word) + 0.5) * 0x1p-32;
  }

  // words[i] = word(first_token + i) for i in [0, kCount); first_token is a multiple of 4. Lanes are independent, so
  // that the compiler can vectorise over them.
  template <std::size_t kCount>
  void fill_words(std::uint32_t first_token, std::uint32_t* words) const {
    static_assert(kCount % 4U == 0U);
    constexpr std::size_t kLanes = kCount / 4U;
    std::array<std::uint32_t, kLanes> c0{};
    std::array<std::uint32_t, kLanes> c1{};
    std::array<std::uint32_t, kLanes> c2{};
    std::array<std::uint32_t, kLanes> c3{};
    for (std::size_t i = 0; i < kLanes; ++i) {
      c0[i] = first_token / 4U + static_cast<std::uint32_t>(i);
      c2[i] = low_word(position);
      c3[i] = high_word(position);
    }
    PhiloxKey k = key();
    for (int round = 0; round < kPhiloxRounds; ++round) {
      for (std::size_t i = 0; i < kLanes; ++i) {
        const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * c0[i];
        const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * c2[i];
        c0[i] = high_word(product1) ^ c1[i] ^ k[0];
        c1[i] = low_word(product1);
        c2[i] = high_word(product0) ^ c3[i] ^ k[1];
        c3[i] = low_word(product0);
      }
      k[0] += kPhiloxWeyl0;
      k[1] += kPhiloxWeyl1;
    }
    for (std::size_t i = 0; i < kLanes; ++i) {
      words[4U * i] = c0[i];
      words[4U * i + 1U] = c1[i];
      words[4U * i + 2U] = c2[i];
      words[4U * i + 3U] = c3[i];
    }
  }
};

// Standard Gumbel noise -log(-log u) with u = (word + 1/2) / 2^32, which is never 0 or 1. Lies in [-3.14, 22.88].
inline double gumbel_from_word(std::uint32_t word) {
  const double u = (static_cast<double>(word) + 0.5) * 0x1p-32;
  return -log_positive(-log_positive(u));
}

}  // namespace pelton::sampling

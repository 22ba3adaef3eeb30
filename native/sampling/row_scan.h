// Passes over one row of logits: maxima of chunks, the greedy token, the best n tokens. NaN counts as -inf.
//
// Tokens are ranked by descending logit, then ascending id; every filter keeps a prefix of that ranking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace pelton::sampling {

inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
inline constexpr float kPlusInf = std::numeric_limits<float>::infinity();

// Tokens per chunk in `find_chunk_maxima`, and per batch of noise.
inline constexpr std::size_t kChunkTokens = 128;

// Largest vocabulary: `top_p` adds integer masses of up to 2^40 per token in 64 bits.
inline constexpr std::size_t kMaxVocabSize = std::size_t{1} << 23U;

using LogitRow = std::span<const float>;

struct Candidate {
  float value;
  std::int32_t id;
};

inline bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// Id of the largest logit, the lowest id among equals; -1 if every logit is -inf or NaN.
std::int32_t find_argmax(LogitRow row);

// maxima[c] = largest logit of the kChunkTokens tokens from c * kChunkTokens on; -inf if all are -inf or NaN.
void find_chunk_maxima(LogitRow row, std::vector<float>& maxima);

// The `count` best tokens with a logit above -inf (fewer if there are fewer), in no particular order, except that the
// worst of them is at the back. `maxima` are those of the row.
void find_best_tokens(LogitRow row, const std::vector<float>& maxima, std::size_t count,
                      std::vector<Candidate>& best);

}  // namespace pelton::sampling

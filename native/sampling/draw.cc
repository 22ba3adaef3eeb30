#include "sampling/draw.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "sampling/portable_math.h"

namespace pelton::sampling {
namespace {

constexpr double kWordRange = 0x1p32;

// Far above the rounding errors of scores that can still win (below 1e-13), far below any effect on speed.
constexpr double kSafetyFactor = 1.0 + 1e-9;

class Drawing {
 public:
  Drawing(LogitRow row, const Scaler& scaler, const KeptSet& kept, const NoiseSource& noise)
      : row_(row), scaler_(scaler), kept_(kept), noise_(noise) {}

  // Compare the tokens of a chunk, whose largest logit is `chunk_max`, with the best so far.
  void visit_chunk(std::size_t chunk, float chunk_max) {
    if (chunk_max < kept_.last.value) {
      return;
    }
    const double chunk_scaled = scaler_.scale(chunk_max);
    if (!(chunk_scaled >= kept_.min_scaled)) {
      return;
    }
    const double word_range = find_word_range(chunk_scaled);
    if (word_range < 0.5) {
      return;
    }
    const std::size_t start = chunk * kChunkTokens;
    const std::size_t count = std::min(kChunkTokens, row_.size() - start);
    const double lowest = kWordRange - 0.5 - word_range;
    const std::uint32_t lowest_word = lowest > 0.0 ? static_cast<std::uint32_t>(lowest) : 0U;
    std::array<std::uint32_t, kChunkTokens> words;
    noise_.fill_words<kChunkTokens>(static_cast<std::uint32_t>(start), words.data());
    if (std::none_of(words.begin(), words.end(), [&](std::uint32_t word) { return word >= lowest_word; })) {
      return;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (words[i] >= lowest_word) {
        compare({row_[start + i], static_cast<std::int32_t>(start + i)}, words[i]);
      }
    }
  }

  [[nodiscard]] std::int32_t best_id() const { return best_id_; }

 private:
  // A token with scaled logit a and random number u beats score s only if -log u >= 1 - u is at most exp(a - s), hence
  // only if its word, (u * 2^32 - 1/2), is within exp(a - s) * 2^32 of the largest. Returns that distance.
  [[nodiscard]] double find_word_range(double scaled) const {
    const double lead = scaled - best_score_;
    return lead >= 0.0 ? kWordRange : exp_nonpositive(lead) * kSafetyFactor * kWordRange;
  }

  void compare(const Candidate& token, std::uint32_t word) {
    if (!kept_.reaches(token)) {
      return;
    }
    const double scaled = scaler_.scale(token.value);
    if (!(scaled >= kept_.min_scaled)) {
      return;
    }
    const double score = scaled + gumbel_from_word(word);
    if (score > best_score_ || (score == best_score_ && token.id < best_id_)) {
      // Last, because few come so far and fewer requests drop their best tokens.
      if (ranks_before(token, kept_.first)) {
        return;
      }
      best_score_ = score;
      best_id_ = token.id;
    }
  }

  LogitRow row_;
  const Scaler& scaler_;
  const KeptSet& kept_;
  const NoiseSource& noise_;
  double best_score_ = -std::numeric_limits<double>::infinity();
  std::int32_t best_id_ = std::numeric_limits<std::int32_t>::max();
};

}  // namespace

std::int32_t draw_token(LogitRow row, const std::vector<float>& maxima, const Scaler& scaler, const KeptSet& kept,
                        const NoiseSource& noise) {
  Drawing drawing(row, scaler, kept, noise);
  // The chunk of the most likely token first: it sets a score that most others cannot reach.
  const auto first = static_cast<std::size_t>(
      std::find(maxima.begin(), maxima.end(), scaler.max) - maxima.begin());
  drawing.visit_chunk(first, maxima[first]);
  for (std::size_t chunk = 0; chunk < maxima.size(); ++chunk) {
    if (chunk != first) {
      drawing.visit_chunk(chunk, maxima[chunk]);
    }
  }
  return drawing.best_id();
}

}  // namespace pelton::sampling

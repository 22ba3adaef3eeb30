// rms_norm, silu_mul and rope over ragged widths.
#include <algorithm>
#include <cmath>

#include "tests/kernel_test.h"

namespace pelton::test {

namespace {

void test_rms_norm(const KernelTable& scalar, const Target& target, std::size_t n, Random& random) {
  const std::vector<float> x = random.floats(n, 4.0F);
  const std::vector<float> weight = random.floats(n, 2.0F);
  std::vector<float> expected(n);
  std::vector<float> actual(n);
  scalar.rms_norm(x.data(), weight.data(), 1e-5F, static_cast<std::int64_t>(n), expected.data());
  target.kernels->rms_norm(x.data(), weight.data(), 1e-5F, static_cast<std::int64_t>(n), actual.data());
  require_same_bits(actual.data(), expected.data(), n, "rms_norm " + target.name + ", " + std::to_string(n));
  double squares = 0.0;
  for (const float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
  const double root = std::sqrt(squares / static_cast<double>(n) + 1e-5);
  for (std::size_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(x[i]) / root * static_cast<double>(weight[i]);
    require(std::abs(static_cast<double>(expected[i]) - value) <= 1e-6 * std::abs(value) + 1e-12, "rms_norm: value");
  }
}

void test_silu_mul(const KernelTable& scalar, const Target& target, std::size_t n, Random& random) {
  std::vector<float> gate = random.floats(n, 120.0F);  // beyond both ends of exp
  const std::vector<float> special = {0.0F,   -0.0F,   87.0F, -87.0F, 88.5F,    -88.5F,
                                      1e-40F, -1e-40F, 3e38F, -3e38F, INFINITY, -INFINITY};
  if (n > 2 * special.size()) std::copy(special.begin(), special.end(), gate.begin() + 5);
  const std::vector<float> up = random.floats(n, 2.0F);
  std::vector<float> expected(n);
  std::vector<float> actual(n);
  scalar.silu_mul(gate.data(), up.data(), static_cast<std::int64_t>(n), expected.data());
  target.kernels->silu_mul(gate.data(), up.data(), static_cast<std::int64_t>(n), actual.data());
  require_same_bits(actual.data(), expected.data(), n, "silu_mul " + target.name + ", " + std::to_string(n));
  for (std::size_t i = 0; i < n; ++i) {
    if (!(std::abs(gate[i]) < 80.0F)) continue;
    const auto x = static_cast<double>(gate[i]);
    const double value = x / (1.0 + std::exp(-x)) * static_cast<double>(up[i]);
    require(std::abs(static_cast<double>(expected[i]) - value) <= 1e-6 * std::abs(value) + 1e-37, "silu_mul: value");
  }
}

void test_rope(const KernelTable& scalar, const Target& target, std::int64_t num_pairs, bool is_adjacent,
               Random& random) {
  constexpr std::int64_t kHeads = 3;
  const std::int64_t head_dim = 2 * num_pairs + 4;
  std::vector<float> expected = random.floats(static_cast<std::size_t>(kHeads * head_dim), 2.0F);
  std::vector<float> actual = expected;
  const std::vector<float> cos = random.floats(static_cast<std::size_t>(num_pairs), 1.0F);
  const std::vector<float> sin = random.floats(static_cast<std::size_t>(num_pairs), 1.0F);
  scalar.rope(expected.data(), kHeads, head_dim, num_pairs, is_adjacent, cos.data(), sin.data());
  target.kernels->rope(actual.data(), kHeads, head_dim, num_pairs, is_adjacent, cos.data(), sin.data());
  const std::string what = "rope " + target.name + ", " + std::to_string(num_pairs) + " pairs";
  require_same_bits(actual.data(), expected.data(), expected.size(), what);
}

}  // namespace

void test_rowwise(const KernelTable& scalar, const std::vector<Target>& targets) {
  Random random(2);
  for (const Target& target : targets) {
    for (const std::size_t n : {1u, 3u, 7u, 16u, 33u, 100u, 576u, 1537u}) {
      test_rms_norm(scalar, target, n, random);
      test_silu_mul(scalar, target, n, random);
    }
    for (const std::int64_t num_pairs : {1, 10, 32}) {
      for (const bool is_adjacent : {false, true}) test_rope(scalar, target, num_pairs, is_adjacent, random);
    }
  }
}

}  // namespace pelton::test

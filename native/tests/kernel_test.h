// What the parts of kernel_test share: random numbers, the kernel tables under test, comparison of bits. Every table
// this machine can run must give the bits of the scalar one; the scalar one itself is held against double arithmetic.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "isa/kernels.h"

namespace pelton::test {

struct Target {
  std::string name;
  const KernelTable* kernels;
};

// Prints `what` and ends the program with an error unless `condition` holds.
void require(bool condition, const std::string& what);

template <typename T>
void require_same_bits(const T* actual, const T* expected, std::size_t n, const std::string& what) {
  for (std::size_t i = 0; i < n; ++i) {
    require(std::memcmp(actual + i, expected + i, sizeof(T)) == 0,
            what + ": element " + std::to_string(i) + " is " + std::to_string(actual[i]) + ", not " +
                std::to_string(expected[i]));
  }
}

// The same numbers everywhere: splitmix64 (Steele, Lea and Flood 2014), not a library distribution.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Uniform in [-1, 1).
  float unit() {
    constexpr std::int32_t kHalf = 1 << 23;
    return static_cast<float>(static_cast<std::int32_t>(next() >> 40) - kHalf) / static_cast<float>(kHalf);
  }
  std::vector<float> floats(std::size_t n, float factor) {
    std::vector<float> values(n);
    for (float& value : values) value = unit() * factor;
    return values;
  }

 private:
  std::uint64_t state_;
};

// Each runs every target against `scalar`.
void test_linear(const KernelTable& scalar, const std::vector<Target>& targets);
void test_rowwise(const KernelTable& scalar, const std::vector<Target>& targets);
void test_attention(const KernelTable& scalar, const std::vector<Target>& targets);

}  // namespace pelton::test

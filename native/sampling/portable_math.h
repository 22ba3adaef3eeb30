// exp and log that give the same bits on every machine; sampling must not use <cmath>'s.
//
// glibc picks its exp and log by CPU (with or without FMA), so the last bit, and with it a drawn token, could depend on
// the machine. These use only +, -, *, / in a fixed order (compile with -ffp-contract=off) and vectorise without
// intrinsics. Both are Taylor series after the usual range reduction.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace pelton::sampling {

// ln 2 in two parts: the first has 32 bits, so that its product with an exponent is exact.
inline constexpr double kLn2High = 0x1.62e42feep-1;
inline constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
inline constexpr double kLn2 = 0x1.62e42fefa39efp-1;
inline constexpr double kLog2E = 0x1.71547652b82fep+0;

// Lower bound of exponents: its power is still a normal number.
inline constexpr double kMinExponent = -708.0;

// exp(x) for x in [kMinExponent, 0], within 1e-11 of itself.
inline double exp_in_range(double x) {
  // Adding 1.5 * 2^52 rounds to an integer and leaves it in the low mantissa bits.
  constexpr double kRound = 0x1.8p52;
  const double shifted = x * kLog2E + kRound;
  const double n = shifted - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  // |r| <= ln(2) / 2: the first term left out, r^10 / 10!, is below 7e-12. Terms in pairs, for a short chain.
  const double r2 = r * r;
  const double r4 = r2 * r2;
  const double p01 = 1.0 + r;
  const double p23 = 1.0 / 2.0 + 1.0 / 6.0 * r;
  const double p45 = 1.0 / 24.0 + 1.0 / 120.0 * r;
  const double p67 = 1.0 / 720.0 + 1.0 / 5040.0 * r;
  const double p89 = 1.0 / 40320.0 + 1.0 / 362880.0 * r;
  const double p = (p01 + r2 * p23) + r4 * ((p45 + r2 * p67) + r4 * p89);
  const std::uint64_t power = (std::bit_cast<std::uint64_t>(shifted) + 1023U) << 52U;
  return p * std::bit_cast<double>(power);
}

// NaN becomes kMinExponent.
inline double clamp_exponent(double x) { return x > kMinExponent ? x : kMinExponent; }

// exp(x) for x <= 0. Below kMinExponent, and for -inf and NaN, it is exp(kMinExponent), about 3e-308: nothing beside
// the 1 of the most likely token.
inline double exp_nonpositive(double x) { return exp_in_range(clamp_exponent(x)); }

// The same in place for many; two loops, because GCC vectorises neither when they are one.
template <std::size_t kCount>
void exp_nonpositive(std::array<double, kCount>& values) {
  for (std::size_t i = 0; i < kCount; ++i) {
    values[i] = clamp_exponent(values[i]);
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    values[i] = exp_in_range(values[i]);
  }
}

// log(x) for finite x > 0, subnormals included, within 2 units in the last place.
inline double log_positive(double x) {
  constexpr double kSqrt2 = 0x1.6a09e667f3bcdp+0;
  constexpr std::uint64_t kMantissaMask = (std::uint64_t{1} << 52U) - 1U;
  std::int64_t exponent = -1023;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    exponent -= 54;
  }
  const auto bits = std::bit_cast<std::uint64_t>(x);
  exponent += static_cast<std::int64_t>(bits >> 52U);
  double m = std::bit_cast<double>((bits & kMantissaMask) | std::bit_cast<std::uint64_t>(1.0));
  if (m > kSqrt2) {
    m *= 0.5;
    exponent += 1;
  }
  // log m = 2 atanh s with s = (m - 1) / (m + 1), |s| < 0.1716: the first term left out is below 1e-18 of the result.
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 23.0;
  p = p * z + 1.0 / 21.0;
  p = p * z + 1.0 / 19.0;
  p = p * z + 1.0 / 17.0;
  p = p * z + 1.0 / 15.0;
  p = p * z + 1.0 / 13.0;
  p = p * z + 1.0 / 11.0;
  p = p * z + 1.0 / 9.0;
  p = p * z + 1.0 / 7.0;
  p = p * z + 1.0 / 5.0;
  p = p * z + 1.0 / 3.0;
  const double n = static_cast<double>(exponent);
  return n * kLn2High + (2.0 * s + (2.0 * s * z * p + n * kLn2Low));
}

}  // namespace pelton::sampling

// Plain C++ for machines without AVX2: a vector is an array of 16. See simd/README.md for the operations.
//
// Every operation gives the same bits as its AVX twin, fused multiply-add included, so this is also the reference of
// the kernel tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/half.h"

namespace pelton::scalar {

inline constexpr int kLanes = 16;
inline constexpr int kMaxTokenBlock = 2;
inline constexpr std::int64_t kMinStripTokens = 0;
inline constexpr int kScoreRows = 2;
inline constexpr int kScoreSums = 4;
inline constexpr int kValueRows = 2;
inline constexpr int kValueVecs = 1;
inline constexpr int kValueTilesAhead = 1;
// Of coded keys and values: rows at once, and how many blocks ahead they are prefetched.
inline constexpr int kCodedScoreRows = 2;
inline constexpr int kCodedValueRows = 2;
inline constexpr int kCodedTilesAhead = 1;

struct V {
  float v[16];
};
struct IV {
  std::int32_t v[16];
};

template <typename F>
inline V map(F f) {
  V r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}

inline V zero() { return map([](int) { return 0.0F; }); }
inline V set1(float x) { return map([x](int) { return x; }); }
inline V load(const float* p) { return map([p](int i) { return p[i]; }); }
inline void store(float* p, V a) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
inline V add(V a, V b) { return map([&](int i) { return a.v[i] + b.v[i]; }); }
inline V sub(V a, V b) { return map([&](int i) { return a.v[i] - b.v[i]; }); }
inline V mul(V a, V b) { return map([&](int i) { return a.v[i] * b.v[i]; }); }
inline V div(V a, V b) { return map([&](int i) { return a.v[i] / b.v[i]; }); }
inline V fma(V a, V b, V c) { return map([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); }); }
// As the x86 instructions: the second operand where either is NaN.
inline V max(V a, V b) { return map([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline V min(V a, V b) { return map([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
inline V abs(V a) { return map([&](int i) { return std::fabs(a.v[i]); }); }
inline V round(V a) { return map([&](int i) { return std::nearbyint(a.v[i]); }); }
inline V select_lt(V a, V b, V x, V y) { return map([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; }); }
inline V iota() { return map([](int i) { return static_cast<float>(i); }); }
// Float to int32 as x86 does it: what does not fit becomes the smallest integer.
inline std::int32_t to_int(float x) {
  return x >= -2147483648.0F && x < 2147483648.0F ? static_cast<std::int32_t>(std::nearbyint(x)) : INT32_MIN;
}
inline V pow2(V a) {
  return map([&](int i) {
    return std::bit_cast<float>((static_cast<std::uint32_t>(to_int(a.v[i])) + 127u) << 23);
  });
}
inline V load_f16(const std::uint16_t* p) { return map([p](int i) { return f16_to_f32(p[i]); }); }
inline void store_f16(std::uint16_t* p, V a) {
  for (int i = 0; i < 16; ++i) p[i] = f32_to_f16(a.v[i]);
}
inline V load_bf16(const std::uint16_t* p) { return map([p](int i) { return bf16_to_f32(p[i]); }); }
inline V load_i8(const std::int8_t* p) { return map([p](int i) { return static_cast<float>(p[i]); }); }
inline void store_i8(std::int8_t* p, V a) {
  for (int i = 0; i < 16; ++i) {
    const std::int32_t x = to_int(a.v[i]);
    p[i] = static_cast<std::int8_t>(x < -128 ? -128 : x > 127 ? 127 : x);
  }
}

// Maximum, and sum of integral lanes: exact, so the order of lanes does not matter.
inline float reduce_max(V a) {
  float m = a.v[0];
  for (int i = 1; i < 16; ++i) m = m > a.v[i] ? m : a.v[i];
  return m;
}
inline float reduce_integral_sum(V a) {
  float sum = 0.0F;
  for (int i = 0; i < 16; ++i) sum += a.v[i];
  return sum;
}
// Sum over the lanes by halves: lane i with lane i+8, then +4, +2, +1.
inline float sum_halves(V a) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) a.v[i] = a.v[i] + a.v[i + width];
  }
  return a.v[0];
}

inline IV iset1(std::int32_t x) {
  IV r;
  for (int i = 0; i < 16; ++i) r.v[i] = x;
  return r;
}
inline V to_f32(IV a) { return map([&](int i) { return static_cast<float>(a.v[i]); }); }

struct Code {
  std::uint8_t v[64];
};

template <int kBits>
inline constexpr int kCodeOffset = 0;

template <int kBits>
inline void load_codes(const std::uint8_t* p, int /*half*/, Code (&c)[8]) {
  for (int step = 0; step < 8; ++step) {
    for (int k = 0; k < 64; ++k) {
      if constexpr (kBits == 8) {
        c[step].v[k] = p[step * 64 + k];
        continue;
      }
      constexpr bool kHasFour = (kBits & 4) != 0;
      constexpr bool kHasTwo = (kBits & 2) != 0;
      constexpr bool kHasOne = (kBits & 1) != 0;
      unsigned code = 0;
      int shift = 0;
      const std::uint8_t* q = p;
      if constexpr (kHasFour) {
        code = (static_cast<unsigned>(q[(step % 4) * 64 + k]) >> (step / 4 * 4)) & 15u;
        shift = 4;
        q += 256;
      }
      if constexpr (kHasTwo) {
        code |= ((static_cast<unsigned>(q[(step % 2) * 64 + k]) >> (step / 2 * 2)) & 3u) << shift;
        shift += 2;
        q += 128;
      }
      if constexpr (kHasOne) code |= ((static_cast<unsigned>(q[k]) >> step) & 1u) << shift;
      c[step].v[k] = static_cast<std::uint8_t>(code);
    }
  }
}

template <int kBits, int kFrom, int kTo>
inline IV dot(IV acc, const Code (&c)[8], const std::int8_t* a) {
  for (int step = kFrom; step < kTo; ++step) {
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < 4; ++k) acc.v[row] += static_cast<std::int32_t>(c[step].v[row * 4 + k]) * a[step * 4 + k];
    }
  }
  return acc;
}

// The same with `a` starting at step kFrom.
template <int kBits, int kFrom, int kTo>
inline IV dot_chain(IV acc, const Code (&c)[8], const std::int8_t* a) {
  for (int step = kFrom; step < kTo; ++step) {
    const std::int8_t* four = a + (step - kFrom) * 4;
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < 4; ++k) acc.v[row] += static_cast<std::int32_t>(c[step].v[row * 4 + k]) * four[k];
    }
  }
  return acc;
}

}  // namespace pelton::scalar

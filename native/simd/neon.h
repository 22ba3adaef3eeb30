// AArch64 with the dot product extension: one 128-bit register is a vector of 4 lanes. See simd/README.md for the
// operations. Where Arm and x86 differ (NaN in maximum and minimum, conversions that do not fit), x86's result is made.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace pelton::neon {

inline constexpr int kLanes = 4;
// Rows that a register-blocked loop may hold: 32 registers, four of them per 16-lane vector.
inline constexpr int kMaxTokenBlock = 8;
inline constexpr std::int64_t kMinStripTokens = 32;
inline constexpr int kScoreRows = 6;
inline constexpr int kScoreSums = 6;
inline constexpr int kValueRows = 6;
inline constexpr int kValueTilesAhead = 2;
// Of coded keys and values: rows at once, and how many blocks ahead they are prefetched.
inline constexpr int kCodedScoreRows = 8;
inline constexpr int kCodedValueRows = 4;
inline constexpr int kCodedTilesAhead = 4;
inline constexpr int kValueVecs = 1;

struct V {
  float32x4_t v;
};
struct IV {
  int32x4_t v;
};

inline V zero() { return {vdupq_n_f32(0.0F)}; }
inline V set1(float x) { return {vdupq_n_f32(x)}; }
inline V load(const float* p) { return {vld1q_f32(p)}; }
inline void store(float* p, V a) { vst1q_f32(p, a.v); }
inline V add(V a, V b) { return {vaddq_f32(a.v, b.v)}; }
inline V sub(V a, V b) { return {vsubq_f32(a.v, b.v)}; }
inline V mul(V a, V b) { return {vmulq_f32(a.v, b.v)}; }
inline V div(V a, V b) { return {vdivq_f32(a.v, b.v)}; }
inline V fma(V a, V b, V c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// The second operand where either is NaN, unlike FMAX and FMIN.
inline V max(V a, V b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
inline V min(V a, V b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
inline V abs(V a) { return {vabsq_f32(a.v)}; }
inline V round(V a) { return {vrndnq_f32(a.v)}; }
// a < b ? x : y, lane by lane.
inline V select_lt(V a, V b, V x, V y) { return {vbslq_f32(vcltq_f32(a.v, b.v), x.v, y.v)}; }
inline V iota() {
  constexpr float kLaneIndex[kLanes] = {0.0F, 1.0F, 2.0F, 3.0F};
  return {vld1q_f32(kLaneIndex)};
}
// 2^a for integral a in [-126, 127].
inline V pow2(V a) {
  return {vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(a.v), vdupq_n_s32(127)), 23))};
}
inline V load_f16(const std::uint16_t* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))}; }
inline void store_f16(std::uint16_t* p, V a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.v))); }
inline V load_bf16(const std::uint16_t* p) { return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))}; }
inline V load_i8(const std::int8_t* p) {
  std::int32_t four;
  std::memcpy(&four, p, 4);
  const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))};
}
// Rounds to nearest even and stores one byte per lane; lanes must lie in [-128, 127]. What does not fit an int32
// becomes the smallest one, as on x86.
inline void store_i8(std::int8_t* p, V a) {
  const float32x4_t limit = vdupq_n_f32(2147483648.0F);
  const uint32x4_t fits = vandq_u32(vcgeq_f32(a.v, vnegq_f32(limit)), vcltq_f32(a.v, limit));
  const int32x4_t wide = vbslq_s32(fits, vcvtnq_s32_f32(a.v), vdupq_n_s32(INT32_MIN));
  const int16x4_t words = vqmovn_s32(wide);
  const std::int32_t four = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(words, words))), 0);
  std::memcpy(p, &four, 4);
}

// Maximum, and sum of integral lanes: exact, so the order of lanes does not matter.
inline float reduce_max(V a) { return vmaxvq_f32(a.v); }
inline float reduce_integral_sum(V a) { return vaddvq_f32(a.v); }

// Sum over the lanes by halves: lane i with lane i+2, then +1.
inline float sum_halves(V a) {
  const float32x2_t two = vadd_f32(vget_low_f32(a.v), vget_high_f32(a.v));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

inline IV iset1(std::int32_t x) { return {vdupq_n_s32(x)}; }
inline V to_f32(IV a) { return {vcvtq_f32_s32(a.v)}; }

// --- codes: one register per step of 4 inputs x kLanes rows, signed bytes --------------------------------------------
struct Code {
  int8x16_t v;
};

// SDOT takes signed bytes on both sides: codes of up to 7 bits are used as they are, of 8-bit codes 128 is taken off;
// the caller adds 128 x the activation sum back through the zero point.
template <int kBits>
inline constexpr int kCodeOffset = kBits == 8 ? 128 : 0;

inline uint8x16_t shift8(uint8x16_t line, int right) {
  return vshlq_u8(line, vdupq_n_s8(static_cast<std::int8_t>(-right)));
}

// `half` is which kLanes of the tile's 16 rows.
template <int kBits>
inline void load_codes(const std::uint8_t* tile, int half, Code (&c)[8]) {
  const std::uint8_t* p = tile + half * 16;
  if constexpr (kBits == 8) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) c[i].v = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p + i * 64), vdupq_n_u8(0x80)));
    return;
  }
  constexpr bool kHasFour = (kBits & 4) != 0;
  constexpr bool kHasTwo = (kBits & 2) != 0;
  constexpr bool kHasOne = (kBits & 1) != 0;
  uint8x16_t code[8];
  if constexpr (kHasFour) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const uint8x16_t line = vld1q_u8(p + i * 64);
      code[i] = vandq_u8(line, vdupq_n_u8(0x0f));
      code[i + 4] = vshrq_n_u8(line, 4);
    }
  }
  if constexpr (kHasTwo) {
    const std::uint8_t* q = p + (kHasFour ? 256 : 0);
    constexpr int kShift = kHasFour ? 4 : 0;
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const uint8x16_t line = vld1q_u8(q + i * 64);
#pragma GCC unroll 4
      for (int b = 0; b < 4; ++b) {
        const uint8x16_t bits = vandq_u8(shift8(line, 2 * b - kShift), vdupq_n_u8(3 << kShift));
        const int step = i + 2 * b;
        code[step] = kHasFour ? vorrq_u8(code[step], bits) : bits;
      }
    }
  }
  if constexpr (kHasOne) {
    constexpr int kShift = (kHasFour ? 4 : 0) + (kHasTwo ? 2 : 0);
    const uint8x16_t line = vld1q_u8(p + (kHasFour ? 256 : 0) + (kHasTwo ? 128 : 0));
#pragma GCC unroll 8
    for (int b = 0; b < 8; ++b) {
      code[b] = vorrq_u8(code[b], vandq_u8(shift8(line, b - kShift), vdupq_n_u8(1 << kShift)));
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) c[i].v = vreinterpretq_s8_u8(code[i]);
}

// acc + sum over steps kFrom..kTo-1 of code x activation: exact in 32 bits.
template <int kBits, int kFrom, int kTo>
inline IV dot(IV acc, const Code (&c)[8], const std::int8_t* a) {
  static_assert((kTo - kFrom) % 4 == 0, "one load of activations serves four steps");
  // Two chains halve the latency; integer sums are exact, so the split changes nothing.
  int32x4_t odd = vdupq_n_s32(0);
#pragma GCC unroll 2
  for (int i = kFrom; i < kTo; i += 4) {
    const int8x16_t x = vld1q_s8(a + i * 4);
    acc.v = vdotq_laneq_s32(acc.v, c[i].v, x, 0);
    odd = vdotq_laneq_s32(odd, c[i + 1].v, x, 1);
    acc.v = vdotq_laneq_s32(acc.v, c[i + 2].v, x, 2);
    odd = vdotq_laneq_s32(odd, c[i + 3].v, x, 3);
  }
  return {vaddq_s32(acc.v, odd)};
}

// The same as one chain, for callers that have enough sums under way; `a` starts at step kFrom.
template <int kBits, int kFrom, int kTo>
inline IV dot_chain(IV acc, const Code (&c)[8], const std::int8_t* a) {
  static_assert((kTo - kFrom) % 4 == 0, "one load of activations serves four steps");
#pragma GCC unroll 2
  for (int i = kFrom; i < kTo; i += 4) {
    const int8x16_t x = vld1q_s8(a + (i - kFrom) * 4);
    acc.v = vdotq_laneq_s32(acc.v, c[i].v, x, 0);
    acc.v = vdotq_laneq_s32(acc.v, c[i + 1].v, x, 1);
    acc.v = vdotq_laneq_s32(acc.v, c[i + 2].v, x, 2);
    acc.v = vdotq_laneq_s32(acc.v, c[i + 3].v, x, 3);
  }
  return acc;
}

}  // namespace pelton::neon

// The 16-lane logical vector that reductions are defined on, whatever the register width. Included inside an ISA's
// namespace after its simd header, hence no include guard and no includes of its own.

inline constexpr int kParts = 16 / kLanes;

struct F32x16 {
  V part[kParts];
};

template <typename F>
inline F32x16 map16(F f) {
  F32x16 r;
#pragma GCC unroll 4
  for (int i = 0; i < kParts; ++i) r.part[i] = f(i);
  return r;
}

inline F32x16 zero16() { return map16([](int) { return zero(); }); }
inline F32x16 set16(float x) { return map16([x](int) { return set1(x); }); }
inline F32x16 load16(const float* p) { return map16([p](int i) { return load(p + i * kLanes); }); }
inline void store16(float* p, const F32x16& a) {
  for (int i = 0; i < kParts; ++i) store(p + i * kLanes, a.part[i]);
}
// The first n of 16 floats (n <= 16), the rest zero.
inline F32x16 load16_first(const float* p, std::int64_t n) {
  if (n >= 16) return load16(p);
  float tmp[16] = {};
  for (std::int64_t i = 0; i < n; ++i) tmp[i] = p[i];
  return load16(tmp);
}
inline void store16_first(float* p, const F32x16& a, std::int64_t n) {
  if (n >= 16) {
    store16(p, a);
    return;
  }
  float tmp[16];
  store16(tmp, a);
  for (std::int64_t i = 0; i < n; ++i) p[i] = tmp[i];
}
inline F32x16 fma16(const F32x16& a, const F32x16& b, const F32x16& c) {
  return map16([&](int i) { return fma(a.part[i], b.part[i], c.part[i]); });
}
inline F32x16 mul16(const F32x16& a, const F32x16& b) {
  return map16([&](int i) { return mul(a.part[i], b.part[i]); });
}
inline F32x16 add16(const F32x16& a, const F32x16& b) {
  return map16([&](int i) { return add(a.part[i], b.part[i]); });
}

// Sum over the 16 lanes by halves: lane i with lane i+8, then +4, +2, +1. The maximum needs no order.
inline float sum_lanes(const F32x16& a) {
  F32x16 t = a;
  for (int width = kParts / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) t.part[i] = add(t.part[i], t.part[i + width]);
  }
  return sum_halves(t.part[0]);
}
inline float max_lanes(const F32x16& a) {
  V m = a.part[0];
  for (int i = 1; i < kParts; ++i) m = max(m, a.part[i]);
  return reduce_max(m);
}

// e^x to about 2 ulp for x <= 88; 0 below -87. Range reduction by ln 2 in two parts (Cody and Waite 1980) and a
// degree-6 polynomial (Taylor; the reduced argument is at most ln2/2, remainder below 2e-8).
inline V exp(V x) {
  const V lowest = set1(-87.0F);
  const V clamped = max(min(x, set1(88.0F)), lowest);
  const V n = round(mul(clamped, set1(1.44269504F)));
  V r = fma(n, set1(-0.693145751953125F), clamped);
  r = fma(n, set1(-1.42860682030941723e-6F), r);
  V p = set1(1.0F / 720.0F);
  p = fma(p, r, set1(1.0F / 120.0F));
  p = fma(p, r, set1(1.0F / 24.0F));
  p = fma(p, r, set1(1.0F / 6.0F));
  p = fma(p, r, set1(0.5F));
  p = fma(p, r, set1(1.0F));
  p = fma(p, r, set1(1.0F));
  return select_lt(x, lowest, zero(), mul(p, pow2(n)));
}

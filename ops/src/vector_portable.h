// Vectors of 4 floats by the compiler's vector extension: SSE2 on x86-64, NEON on aarch64.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ortolan {
namespace {
namespace simd {

typedef float F __attribute__((vector_size(16)));
typedef int32_t I __attribute__((vector_size(16)));
constexpr int kWidth = 4;

inline F zero() { return F{0.0f, 0.0f, 0.0f, 0.0f}; }
inline F set1(float x) { return F{x, x, x, x}; }
inline F load(const float* p) {
  F x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
inline F add(F a, F b) { return a + b; }
inline F sub(F a, F b) { return a - b; }
inline F mul(F a, F b) { return a * b; }
inline F div(F a, F b) { return a / b; }
#if defined(__aarch64__)
inline F fma(F a, F b, F c) { return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#else
inline F fma(F a, F b, F c) { return a * b + c; }
#endif
// 1 / x for x from 1 to 2.
inline F reciprocal(F x) { return div(set1(1.0f), x); }
inline F select(I mask, F a, F b) { return (F)((mask & (I)a) | (~mask & (I)b)); }
// max(a, b) is b where either is NaN.
inline F max(F a, F b) { return select(a > b, a, b); }
inline F min(F a, F b) { return select(a < b, a, b); }
inline F abs(F x) { return (F)((I)x & I{0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff}); }
// The magnitude of a with the sign of b.
inline F copy_sign(F a, F b) {
  const I magnitude = {0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff};
  return (F)(((I)a & magnitude) | ((I)b & ~magnitude));
}
// x < limit ? a : b; b where x is NaN.
inline F if_less(F x, F limit, F a, F b) { return select(x < limit, a, b); }
// Lane i is a where bit i is set, else b.
inline F if_bits(uint32_t bits, F a, F b) {
  const I lanes = {1, 2, 4, 8};
  const int32_t spread = static_cast<int32_t>(bits);
  return select((I{spread, spread, spread, spread} & lanes) == lanes, a, b);
}
inline uint32_t bits_of(I mask) {
  return static_cast<uint32_t>((mask[0] & 1) | (mask[1] & 2) | (mask[2] & 4) | (mask[3] & 8));
}
// Bit i is set where lane i of x is at least, or above, that of limit.
inline uint32_t at_least(F x, F limit) { return bits_of(x >= limit); }
inline uint32_t above(F x, F limit) { return bits_of(x > limit); }
// 2^n where t is n + 127 + 1.5 * 2^23 for whole n in [-127, 127]: 0 for n = -127.
inline F power_of_low_bits(F t) {
  typedef uint32_t U __attribute__((vector_size(16)));
  return (F)(((U)t) << 23);
}
#if defined(__aarch64__)
inline F load_half(const uint16_t* p) { return (F)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline void store_half(uint16_t* p, F x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x))); }
#else
// IEEE binary16, as the conversion instructions of the other paths do it: to nearest, ties to even.
inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t fraction = h & 0x3ffu;
  uint32_t bits;
  if (exponent == 0x1f) {
    bits = sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0u);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  } else {
    const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-8f;  // fraction * 2^-24, exact
    std::memcpy(&bits, &magnitude, sizeof bits);
    bits |= sign;
  }
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline uint16_t float_to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((bits >> 13) & 0x1ffu));
  if (bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
  if (bits < 0x38800000u) {  // subnormal half: whole multiples of 2^-24
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof magnitude);
    const float shifted = magnitude + 0.5f;  // the ulp of [0.5, 1) is 2^-24: the addition rounds
    uint32_t rounded;
    std::memcpy(&rounded, &shifted, sizeof rounded);
    return static_cast<uint16_t>(sign | (rounded - 0x3f000000u));
  }
  bits += 0xfffu + ((bits >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((bits - 0x38000000u) >> 13));
}
inline F load_half(const uint16_t* p) {
  return F{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])};
}
inline void store_half(uint16_t* p, F x) {
  for (int i = 0; i < kWidth; ++i) p[i] = float_to_half(x[i]);
}
#endif
inline float sum(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline float maximum(F x) {
  const float a = x[0] > x[2] ? x[0] : x[2];
  const float b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}
// The sums (x[0] + x[2]) + (x[1] + x[3]) of a, b, c and d side by side.
inline F quarter_sums(F a, F b, F c, F d) { return F{sum(a), sum(b), sum(c), sum(d)}; }
// From quarter sums of vectors 0 to 3: the sum of every vector.
inline F vector_sums(const F* x) { return x[0]; }
// Four rows of 4 become columns.
inline void transpose(F* x) {
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < i; ++j) {
      const float kept = x[i][j];
      x[i][j] = x[j][i];
      x[j][i] = kept;
    }
  }
}

inline I load_bytes(const uint8_t* p) {
  I x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline void store_bytes(uint8_t* p, I x) { std::memcpy(p, &x, sizeof x); }
inline I spread(int32_t x) { return I{x, x, x, x}; }
inline I low_nibbles(I x) { return x & spread(0x0f0f0f0f); }
inline I high_nibbles(I x) { return (x >> 4) & spread(0x0f0f0f0f); }
inline F to_float(I x) { return __builtin_convertvector(x, F); }
// For whole |x| < 2^22.
inline I to_int(F x) {
  const F shift = set1(12582912.0f);
  return (I)(x + shift) - (I)shift;
}
inline I add_int(I a, I b) { return a + b; }
// The low bytes of 4 int32 that fit int8.
inline void store_int8(int8_t* p, I x) {
  for (int i = 0; i < kWidth; ++i) p[i] = static_cast<int8_t>(x[i]);
}
// Adds to each int32 the four products of unsigned bytes of codes with signed ones of x.
inline I add_quads(I sum, I codes, I x) {
  const I byte = spread(255);
  sum += (codes & byte) * ((x << 24) >> 24);
  sum += ((codes >> 8) & byte) * ((x << 16) >> 24);
  sum += ((codes >> 16) & byte) * ((x << 8) >> 24);
  return sum + ((codes >> 24) & byte) * (x >> 24);
}

}  // namespace simd
}  // namespace
}  // namespace ortolan

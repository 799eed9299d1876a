// Vectors of 16 floats: AVX-512 F, BW, DQ and VL.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ortolan {
namespace {
namespace simd {

using F = __m512;
using I = __m512i;  // 16 int32, 32 int16 or 64 bytes
constexpr int kWidth = 16;

inline F zero() { return _mm512_setzero_ps(); }
inline F set1(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
// 1 / x, within 2^-23, for x from 1 to 2: fourteen bits and a Newton step, where a division takes 16 cycles.
inline F reciprocal(F x) {
  const F near = _mm512_rcp14_ps(x);
  return fma(near, _mm512_fnmadd_ps(x, near, set1(1.0f)), near);
}
// max(a, b) is b where either is NaN.
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F abs(F x) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x); }
// The magnitude of a with the sign of b.
inline F copy_sign(F a, F b) {
  const F sign = _mm512_set1_ps(-0.0f);
  return _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b));
}
// x < limit ? a : b; b where x is NaN.
inline F if_less(F x, F limit, F a, F b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), b, a);
}
// Lane i is a where bit i is set, else b.
inline F if_bits(uint32_t bits, F a, F b) { return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), b, a); }
// Bit i is set where lane i of x is at least, or above, that of limit.
inline uint32_t at_least(F x, F limit) { return _mm512_cmp_ps_mask(x, limit, _CMP_GE_OQ); }
inline uint32_t above(F x, F limit) { return _mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ); }
// 2^n where t is n + 127 + 1.5 * 2^23 for whole n in [-127, 127]: 0 for n = -127.
inline F power_of_low_bits(F t) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23)); }
inline F load_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store_half(uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline float sum(F x) {
  const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float maximum(F x) { return _mm512_reduce_max_ps(x); }
// Of each four lanes i to i + 3 the sums (x[i] + x[i + 2]) + (x[i + 1] + x[i + 3]): those of a, b, c and d side by
// side.
inline F quarter_sums(F a, F b, F c, F d) {
  const F ab = add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const F cd = add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  return add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
}
// From quarter sums x[i] of vectors 4i to 4i + 3: the sum of every vector, quarters added in neighbouring pairs.
inline F vector_sums(const F* x) {
  const F front = add(_mm512_shuffle_f32x4(x[0], x[1], 0x88), _mm512_shuffle_f32x4(x[0], x[1], 0xdd));
  const F back = add(_mm512_shuffle_f32x4(x[2], x[3], 0x88), _mm512_shuffle_f32x4(x[2], x[3], 0xdd));
  return add(_mm512_shuffle_f32x4(front, back, 0x88), _mm512_shuffle_f32x4(front, back, 0xdd));
}
// Sixteen rows of 16 become columns.
inline void transpose(F* x) {
  F y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    y[2 * i] = _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_shuffle_ps(y[i], y[i + 2], 0x44);
    x[i + 1] = _mm512_shuffle_ps(y[i], y[i + 2], 0xee);
    x[i + 2] = _mm512_shuffle_ps(y[i + 1], y[i + 3], 0x44);
    x[i + 3] = _mm512_shuffle_ps(y[i + 1], y[i + 3], 0xee);
  }
  // Now lane group g of x[4i + j] is column 4g + j of rows 4i to 4i + 3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const F even = _mm512_shuffle_f32x4(x[j], x[4 + j], 0x88), odd = _mm512_shuffle_f32x4(x[j], x[4 + j], 0xdd);
    const F even2 = _mm512_shuffle_f32x4(x[8 + j], x[12 + j], 0x88),
            odd2 = _mm512_shuffle_f32x4(x[8 + j], x[12 + j], 0xdd);
    y[j] = _mm512_shuffle_f32x4(even, even2, 0x88);
    y[8 + j] = _mm512_shuffle_f32x4(even, even2, 0xdd);
    y[4 + j] = _mm512_shuffle_f32x4(odd, odd2, 0x88);
    y[12 + j] = _mm512_shuffle_f32x4(odd, odd2, 0xdd);
  }
  for (int i = 0; i < 16; ++i) x[i] = y[i];
}

inline I load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline void store_bytes(uint8_t* p, I x) { _mm512_storeu_si512(p, x); }
inline I spread(int32_t x) { return _mm512_set1_epi32(x); }
inline I low_nibbles(I x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline I high_nibbles(I x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
inline F to_float(I x) { return _mm512_cvtepi32_ps(x); }
inline I to_int(F x) { return _mm512_cvtps_epi32(x); }
inline I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
// The low bytes of 16 int32 that fit int8.
inline void store_int8(int8_t* p, I x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}
// 16-bit lanes.
inline I even_bytes(I x) { return _mm512_and_si512(x, _mm512_set1_epi16(255)); }
inline I odd_bytes(I x) { return _mm512_srli_epi16(x, 8); }
inline I add_words(I a, I b) { return _mm512_add_epi16(a, b); }
// Sums of two neighbouring products: unsigned bytes of a with signed ones of b, and words with words.
inline I pair_bytes(I a, I b) { return _mm512_maddubs_epi16(a, b); }
inline I pair_words(I a, I b) { return _mm512_madd_epi16(a, b); }
inline I word_ones() { return _mm512_set1_epi16(1); }
#if defined(__AVX512VNNI__)
// Adds to each int32 the four products of unsigned bytes of codes with signed ones of x.
inline I add_quads(I sum, I codes, I x) { return _mm512_dpbusd_epi32(sum, codes, x); }
#endif

}  // namespace simd
}  // namespace
}  // namespace ortolan

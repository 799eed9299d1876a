// Vectors of 8 floats: AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ortolan {
namespace {
namespace simd {

using F = __m256;
using I = __m256i;  // 8 int32, 16 int16 or 32 bytes
constexpr int kWidth = 8;

inline F zero() { return _mm256_setzero_ps(); }
inline F set1(float x) { return _mm256_set1_ps(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
// 1 / x for x from 1 to 2.
inline F reciprocal(F x) { return div(set1(1.0f), x); }
// max(a, b) is b where either is NaN.
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline F abs(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
// The magnitude of a with the sign of b.
inline F copy_sign(F a, F b) {
  const F sign = _mm256_set1_ps(-0.0f);
  return _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, b));
}
// x < limit ? a : b; b where x is NaN.
inline F if_less(F x, F limit, F a, F b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, limit, _CMP_LT_OQ)); }
// Lane i is a where bit i is set, else b.
inline F if_bits(uint32_t bits, F a, F b) {
  const __m256i lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i chosen = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lanes);
  return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(chosen, lanes)));
}
// Bit i is set where lane i of x is at least, or above, that of limit.
inline uint32_t at_least(F x, F limit) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_GE_OQ)));
}
inline uint32_t above(F x, F limit) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_GT_OQ)));
}
// 2^n where t is n + 127 + 1.5 * 2^23 for whole n in [-127, 127]: 0 for n = -127.
inline F power_of_low_bits(F t) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23)); }
inline F load_half(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store_half(uint16_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline float sum(F x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float maximum(F x) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
// Of each four lanes i to i + 3 the sums (x[i] + x[i + 2]) + (x[i + 1] + x[i + 3]): those of a, b, c and d side by
// side.
inline F quarter_sums(F a, F b, F c, F d) {
  const F ab = add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const F cd = add(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  return add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
}
// From quarter sums x[i] of vectors 4i to 4i + 3: the sum of every vector, quarters added in neighbouring pairs.
inline F vector_sums(const F* x) {
  return add(_mm256_permute2f128_ps(x[0], x[1], 0x20), _mm256_permute2f128_ps(x[0], x[1], 0x31));
}
// Eight rows of 8 become columns.
inline void transpose(F* x) {
  F y[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    y[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
    x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
    x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
    x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    y[j] = _mm256_permute2f128_ps(x[j], x[4 + j], 0x20);
    y[4 + j] = _mm256_permute2f128_ps(x[j], x[4 + j], 0x31);
  }
  for (int i = 0; i < 8; ++i) x[i] = y[i];
}

inline I load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void store_bytes(uint8_t* p, I x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
inline I spread(int32_t x) { return _mm256_set1_epi32(x); }
inline I low_nibbles(I x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline I high_nibbles(I x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
inline F to_float(I x) { return _mm256_cvtepi32_ps(x); }
inline I to_int(F x) { return _mm256_cvtps_epi32(x); }
inline I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
// The low bytes of 8 int32 that fit int8.
inline void store_int8(int8_t* p, I x) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
// 16-bit lanes.
inline I even_bytes(I x) { return _mm256_and_si256(x, _mm256_set1_epi16(255)); }
inline I odd_bytes(I x) { return _mm256_srli_epi16(x, 8); }
inline I add_words(I a, I b) { return _mm256_add_epi16(a, b); }
// Sums of two neighbouring products: unsigned bytes of a with signed ones of b, and words with words.
inline I pair_bytes(I a, I b) { return _mm256_maddubs_epi16(a, b); }
inline I pair_words(I a, I b) { return _mm256_madd_epi16(a, b); }
inline I word_ones() { return _mm256_set1_epi16(1); }
#if defined(__AVXVNNI__)
// Adds to each int32 the four products of unsigned bytes of codes with signed ones of x.
inline I add_quads(I sum, I codes, I x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
#endif

}  // namespace simd
}  // namespace
}  // namespace ortolan

// Products of a block of codes where instructions add only pairs: of bytes to 16 bits, of words to 32.
// Included after one vector_*.h that has pair_bytes and pair_words.
//
// Nibbles: a pair of products of bytes is at most 2 * 15 * 127, and a block adds eight of them, 30480, which 16 bits
// hold. Bytes: a pair of products, 2 * 255 * 127, would not fit, so codes and activations are multiplied as words;
// activations are kept so from the start, the even two of each quad before the odd two.
#pragma once

#include "quant_layout.h"

namespace ortolan {
namespace {

constexpr int activation_bytes(int bits) { return bits == 8 ? 2 : 1; }

inline simd::I four_bytes(const int8_t* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, sizeof quad);
  return simd::spread(quad);
}

// sums[r][v] += products of one block of the tile with row r's codes, which start at x + r * stride.
template <int kBits, int kRows>
inline void add_block(const uint8_t* codes, const int8_t* x, size_t stride,
                      simd::I (&sums)[kRows][kTile / simd::kWidth]) {
  constexpr int kVectors = kTile / simd::kWidth;
  if constexpr (kBits == 4) {
    simd::I words[kRows][kVectors];
#pragma GCC unroll 4
    for (int quad = 0; quad < 4; ++quad) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const simd::I stored = simd::load_bytes(codes + (quad * kTile + v * simd::kWidth) * 4);
        const simd::I low = simd::low_nibbles(stored), high = simd::high_nibbles(stored);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const int8_t* row = x + static_cast<size_t>(r) * stride + quad * 4;
          const simd::I first = simd::pair_bytes(low, four_bytes(row));
          const simd::I second = simd::pair_bytes(high, four_bytes(row + 16));
          const simd::I both = simd::add_words(first, second);
          words[r][v] = quad == 0 ? both : simd::add_words(words[r][v], both);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = simd::add_int(sums[r][v], simd::pair_words(words[r][v], simd::word_ones()));
      }
    }
  } else {
#pragma GCC unroll 4
    for (int quad = 0; quad < 4; ++quad) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const simd::I stored = simd::load_bytes(codes + (quad * kTile + v * simd::kWidth) * 4);
        const simd::I even = simd::even_bytes(stored), odd = simd::odd_bytes(stored);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const int8_t* row = x + static_cast<size_t>(r) * stride + quad * 8;
          sums[r][v] = simd::add_int(sums[r][v], simd::pair_words(even, four_bytes(row)));
          sums[r][v] = simd::add_int(sums[r][v], simd::pair_words(odd, four_bytes(row + 4)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ortolan

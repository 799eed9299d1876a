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

// Bytes are multiplied as words: nibbles made bytes would gain nothing.
constexpr bool kExpands = false;

constexpr int activation_bytes(int bits) { return bits == 8 ? 2 : 1; }

inline simd::I four_bytes(const int8_t* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, sizeof quad);
  return simd::spread(quad);
}

// sums[t][r] += products of one block of each tile with row r's codes, for a vector of the tile's rows.
template <int kBits, int kTiles, int kRows>
inline void add_block(const uint8_t* const (&codes)[kTiles], const int8_t* x, simd::I (&sums)[kTiles][kRows]) {
#pragma GCC unroll 2
  for (int t = 0; t < kTiles; ++t) {
    if constexpr (kBits == 4) {
      simd::I words[kRows];
#pragma GCC unroll 4
      for (int quad = 0; quad < 4; ++quad) {
        const simd::I stored = simd::load_bytes(codes[t] + quad * kTile * 4);
        const simd::I low = simd::low_nibbles(stored), high = simd::high_nibbles(stored);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const simd::I first = simd::pair_bytes(low, four_bytes(x + (quad * kRows + r) * 4));
          const simd::I second = simd::pair_bytes(high, four_bytes(x + ((quad + 4) * kRows + r) * 4));
          words[r] = quad == 0 ? first : simd::add_words(words[r], first);
          words[r] = simd::add_words(words[r], second);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        sums[t][r] = simd::add_int(sums[t][r], simd::pair_words(words[r], simd::word_ones()));
      }
    } else {
#pragma GCC unroll 4
      for (int quad = 0; quad < 4; ++quad) {
        const simd::I stored = simd::load_bytes(codes[t] + quad * kTile * 4);
        const simd::I even = simd::even_bytes(stored), odd = simd::odd_bytes(stored);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const int8_t* row = x + (quad * kRows + r) * 8;
          sums[t][r] = simd::add_int(sums[t][r], simd::pair_words(even, four_bytes(row)));
          sums[t][r] = simd::add_int(sums[t][r], simd::pair_words(odd, four_bytes(row + 4)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ortolan

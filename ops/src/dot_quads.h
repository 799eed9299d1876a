// Products of a block of codes by an instruction that adds four products of bytes to an int32.
// Included after one vector_*.h that has add_quads.
#pragma once

#include "quant_layout.h"

namespace ortolan {
namespace {

// Nibbles may be made bytes once for many rows.
constexpr bool kExpands = true;

constexpr int activation_bytes(int) { return 1; }

inline simd::I four_codes(const int8_t* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, sizeof quad);
  return simd::spread(quad);
}

// sums[t][r] += products of one block of each tile with row r's codes, for a vector of the tile's rows.
template <int kBits, int kTiles, int kRows>
inline void add_block(const uint8_t* const (&codes)[kTiles], const int8_t* x, simd::I (&sums)[kTiles][kRows]) {
#pragma GCC unroll 4
  for (int quad = 0; quad < 4; ++quad) {
    simd::I low[kTiles], high[kTiles];
#pragma GCC unroll 2
    for (int t = 0; t < kTiles; ++t) {
      const simd::I stored = simd::load_bytes(codes[t] + quad * kTile * 4);
      low[t] = kBits == 4 ? simd::low_nibbles(stored) : stored;
      if (kBits == 4) high[t] = simd::high_nibbles(stored);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const simd::I row = four_codes(x + (quad * kRows + r) * 4);
#pragma GCC unroll 2
      for (int t = 0; t < kTiles; ++t) sums[t][r] = simd::add_quads(sums[t][r], low[t], row);
    }
    if (kBits == 4) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const simd::I row = four_codes(x + ((quad + 4) * kRows + r) * 4);
#pragma GCC unroll 2
        for (int t = 0; t < kTiles; ++t) sums[t][r] = simd::add_quads(sums[t][r], high[t], row);
      }
    }
  }
}

}  // namespace
}  // namespace ortolan

// Products of a block of codes by an instruction that adds four products of bytes to an int32.
// Included after one vector_*.h that has add_quads.
#pragma once

#include "quant_layout.h"

namespace ortolan {
namespace {

constexpr int activation_bytes(int) { return 1; }

inline simd::I four_codes(const int8_t* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, sizeof quad);
  return simd::spread(quad);
}

// sums[r][v] += products of one block of the tile with row r's codes, which start at x + r * stride.
template <int kBits, int kRows>
inline void add_block(const uint8_t* codes, const int8_t* x, size_t stride,
                      simd::I (&sums)[kRows][kTile / simd::kWidth]) {
  constexpr int kVectors = kTile / simd::kWidth;
#pragma GCC unroll 4
  for (int quad = 0; quad < 4; ++quad) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const simd::I stored = simd::load_bytes(codes + (quad * kTile + v * simd::kWidth) * 4);
      const simd::I low = kBits == 4 ? simd::low_nibbles(stored) : stored;
      const simd::I high = kBits == 4 ? simd::high_nibbles(stored) : stored;
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const int8_t* row = x + static_cast<size_t>(r) * stride + quad * 4;
        sums[r][v] = simd::add_quads(sums[r][v], low, four_codes(row));
        if (kBits == 4) sums[r][v] = simd::add_quads(sums[r][v], high, four_codes(row + 16));
      }
    }
  }
}

}  // namespace
}  // namespace ortolan

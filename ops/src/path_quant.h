// Products of panels of rows with tiles of quantised weights, and what becomes of them, over a path's vectors.
// Included after path_round.h.
//
// Products of integers are exact, and every row adds its groups in order: how many rows and tiles are multiplied at
// once, whether codes were expanded, and on how many threads, changes no bit.
#pragma once

#include <type_traits>

#include "kernels.h"

namespace ortolan {
namespace {

constexpr int kTileVectors = kTile / kWidth;
// Whether registers hold the sums of two tiles, which then share each row's codes as they are loaded.
constexpr bool kPairsTiles = kWidth == 16;
// How far ahead of their products weights are asked for: of one row or two, which wait for the memory, and of more,
// which compute for longer and want them in the nearest cache.
constexpr size_t kFarAhead = 8192, kAhead = 2048;

template <bool kHalf>
inline F load_scale(const uint8_t* p, int v) {
  if constexpr (kHalf) {
    return simd::load_half(reinterpret_cast<const uint16_t*>(p) + v * kWidth);
  } else {
    return simd::load(reinterpret_cast<const float*>(p) + v * kWidth);
  }
}

inline I spread_offset(const float* p) {
  int32_t offset;
  __builtin_memcpy(&offset, p, sizeof offset);
  return simd::spread(offset);
}

template <int kBits, bool kMinima, bool kHalf, int kTiles, int kRows>
void multiply_rows(const QuantTile* tile, const int8_t* codes, const float* scales, float* products) {
  constexpr int kBlock = kBits == 4 ? 32 : 16;
  constexpr size_t kBlockBytes = static_cast<size_t>(kBlock) * kTile * kBits / 8;
  constexpr int kScaleBytes = kTile * (kHalf ? 2 : 4);
  constexpr int kRowBytes = kBlock * activation_bytes(kBits);
  const int blocks = tile->form.group / kBlock;
  const size_t code_bytes = tile->form.code_bytes(), group_bytes = tile->form.group_bytes();
  F y[kTiles][kRows][kTileVectors];
  for (auto& of_tile : y) {
    for (auto& of_row : of_tile) {
      for (F& vector : of_row) vector = simd::zero();
    }
  }
  const uint8_t* weights[kTiles];
  for (int t = 0; t < kTiles; ++t) weights[t] = tile[t].data;
  for (int g = 0; g < tile->groups; ++g) {
    for (int t = 0; t < kTiles; ++t) {
      for (size_t line = 0; line < group_bytes; line += 64) {
        if constexpr (kRows <= 2) {
          ask_for(weights[t] + kFarAhead + line);
        } else {
          __builtin_prefetch(weights[t] + kAhead + line);
        }
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      I sums[kTiles][kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const I start = kMinima ? simd::spread(0) : spread_offset(scales + kRows + r);
#pragma GCC unroll 2
        for (int t = 0; t < kTiles; ++t) sums[t][r] = start;
      }
      const uint8_t* block[kTiles];
      for (int t = 0; t < kTiles; ++t) block[t] = weights[t] + v * kWidth * 4;
      const int8_t* x = codes;
      for (int b = 0; b < blocks; ++b) {
        add_block<kBits, kTiles, kRows>(block, x, sums);
        for (int t = 0; t < kTiles; ++t) block[t] += kBlockBytes;
        x += kRows * kRowBytes;
      }
#pragma GCC unroll 2
      for (int t = 0; t < kTiles; ++t) {
        const uint8_t* side = weights[t] + code_bytes;
        const F step = load_scale<kHalf>(side, v);
        const F minimum = kMinima ? load_scale<kHalf>(side + kScaleBytes, v) : simd::zero();
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          F& sum = y[t][r][v];
          sum = simd::fma(simd::to_float(sums[t][r]), simd::mul(step, simd::set1(scales[r])), sum);
          if (kMinima) sum = simd::fma(minimum, simd::set1(scales[kRows + r]), sum);
        }
      }
    }
    for (int t = 0; t < kTiles; ++t) weights[t] += group_bytes;
    codes += blocks * kRows * kRowBytes;
    scales += 2 * kRows;
  }
  for (int t = 0; t < kTiles; ++t) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kTileVectors; ++v) {
        simd::store(products + (t * kRows + r) * kTile + v * kWidth, y[t][r][v]);
      }
    }
  }
}

template <int kBits, bool kMinima, bool kHalf, int kTiles>
void multiply_panel(const QuantTile* tile, const QuantPanel& panel, float* products) {
  const auto run = [&](auto rows) {
    multiply_rows<kBits, kMinima, kHalf, kTiles, decltype(rows)::value>(tile, panel.codes, panel.scales, products);
  };
  if (panel.rows == 1) return run(std::integral_constant<int, 1>{});
  if (panel.rows == 2) return run(std::integral_constant<int, 2>{});
  if (panel.rows == 4) return run(std::integral_constant<int, 4>{});
  run(std::integral_constant<int, kPanelMost>{});
}

template <int kTiles>
void multiply_some(const QuantTile* tile, const QuantPanel& panel, float* products) {
  constexpr decltype(&multiply_some<kTiles>) kinds[8] = {
      multiply_panel<4, false, false, kTiles>, multiply_panel<4, false, true, kTiles>,
      multiply_panel<4, true, false, kTiles>,  multiply_panel<4, true, true, kTiles>,
      multiply_panel<8, false, false, kTiles>, multiply_panel<8, false, true, kTiles>,
      multiply_panel<8, true, false, kTiles>,  multiply_panel<8, true, true, kTiles>,
  };
  const QuantForm& form = tile->form;
  kinds[(form.bits == 8 ? 4 : 0) + (form.minima ? 2 : 0) + (form.half_scales ? 1 : 0)](tile, panel, products);
}

// Vectors hold nothing of the processor that others could want.
void release_unit() {}

void multiply_tiles(const QuantTile* tile, int tiles, const QuantPanel& panel, float* products) {
  if (kPairsTiles && tiles == kTilesAtOnce) return multiply_some<kPairsTiles ? kTilesAtOnce : 1>(tile, panel, products);
  for (int t = 0; t < tiles; ++t) multiply_some<1>(tile + t, panel, products + t * panel.rows * kTile);
}

void ask_for_rows(const Epilogue& how, int rows) {
  for (int r = 0; r < rows; ++r) {
    __builtin_prefetch(how.out + r * how.stride, 1);
    if (how.residual) __builtin_prefetch(how.residual + r * how.stride);
  }
}

// One output of a tile that is not whole.
inline float finish_one(const Epilogue& how, const float* y, const float* up, int i) {
  float value = how.bias ? y[i] + how.bias[i] : y[i];
  if (how.gated) {
    const float factor = how.up_bias ? up[i] + how.up_bias[i] : up[i];
    gated_activation(how.activation, &value, &factor, &value, 1);
  }
  return value;
}

void finish_rows(const Epilogue& how, const float* products, const float* up, int rows) {
  for (int r = 0; r < rows; ++r, products += kTile, up += kTile) {
    float* out = how.out + r * how.stride;
    const float* residual = how.residual ? how.residual + r * how.stride : nullptr;
    if (how.count < kTile) {
      for (int i = 0; i < how.count; ++i) {
        const float value = finish_one(how, products, up, i);
        out[i] = residual ? value + residual[i] : value;
      }
      continue;
    }
    for (int i = 0; i < kTile; i += kWidth) {
      F value = simd::load(products + i);
      if (how.bias) value = simd::add(value, simd::load(how.bias + i));
      if (how.gated) {
        F factor = simd::load(up + i);
        if (how.up_bias) factor = simd::add(factor, simd::load(how.up_bias + i));
        value = simd::mul(activate(how.activation, value), factor);
      }
      if (residual) value = simd::add(value, simd::load(residual + i));
      simd::store(out + i, value);
    }
  }
}

}  // namespace
}  // namespace ortolan

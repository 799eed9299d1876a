// Rounding activations to int8, and products with tiles of quantised weights, over a path's vectors.
// Included after path_elementwise.h and one dot_*.h.
//
// Products of integers are exact, and every row adds its groups in order: how many rows are multiplied at once, and
// on how many threads, changes no bit.
#pragma once

#include "kernels.h"

namespace ortolan {
namespace {

using simd::I;

constexpr int kTileVectors = kTile / kWidth;
// Rows whose sums fit the registers beside a block of codes.
constexpr int kRowsAtOnce = kWidth == 16 ? 8 : 4;
// How far ahead of their products weights are asked for: few rows wait for memory, not for arithmetic.
constexpr size_t kAhead = 2048;
// A group below this is rounded to zeros: the reciprocal of its step would overflow.
constexpr float kSmallestActivation = 1e-30f;

int bytes_of_activation(int bits) { return activation_bytes(bits); }

// Codes as words in the order that dot_pairs.h reads: of each quad the even two, then the odd two.
inline void widen_codes(const int8_t* codes, int count, int8_t* out) {
  for (int i = 0; i < count; i += 4) {
    const int16_t words[4] = {codes[i], codes[i + 2], codes[i + 1], codes[i + 3]};
    __builtin_memcpy(out + 2 * i, words, sizeof words);
  }
}

void quantise_row(const QuantForm& form, const float* x, int64_t columns, int8_t* codes, GroupScale* scales) {
  const int bytes = activation_bytes(form.bits);
  const int32_t zero = form.minima ? 0 : 1 << (form.bits - 1);
  alignas(64) float padded[kMaximumGroup];
  alignas(64) int8_t narrow[kMaximumGroup];
  for (int64_t first = 0; first < columns; first += form.group, codes += form.group * bytes, ++scales) {
    const float* in = x + first;
    if (columns - first < form.group) {
      for (int64_t i = 0; i < form.group; ++i) padded[i] = first + i < columns ? in[i] : 0.0f;
      in = padded;
    }
    F top = simd::zero(), poison = simd::zero();
    for (int i = 0; i < form.group; i += kWidth) {
      const F v = simd::load(in + i);
      top = simd::max(top, simd::abs(v));
      poison = simd::add(poison, simd::sub(v, v));
    }
    const float largest = simd::maximum(top);
    const bool counts = largest >= kSmallestActivation;
    const F inverse = simd::set1(counts ? 127.0f / largest : 0.0f);
    int8_t* out = bytes == 1 ? codes : narrow;
    I total = simd::spread(0);
    for (int i = 0; i < form.group; i += kWidth) {
      const I code = simd::to_int(simd::mul(simd::load(in + i), inverse));
      total = simd::add_int(total, code);
      simd::store_int8(out + i, code);
    }
    if (bytes == 2) widen_codes(narrow, form.group, codes);
    // The sum of x - x is 0, or NaN where x holds infinities or NaN: then the row's products are NaN too.
    scales->scale = (counts ? largest / 127.0f : 0.0f) + simd::sum(poison);
    const float sum = simd::sum(simd::to_float(total));
    scales->sum = scales->scale * sum;
    scales->offset = -zero * static_cast<int32_t>(sum);
  }
}

template <bool kHalf>
inline F load_scale(const uint8_t* p, int v) {
  if constexpr (kHalf) {
    return simd::load_half(reinterpret_cast<const uint16_t*>(p) + v * kWidth);
  } else {
    return simd::load(reinterpret_cast<const float*>(p) + v * kWidth);
  }
}

template <int kBits, bool kMinima, bool kHalf, int kRows>
void multiply_rows(const QuantTile& tile, const int8_t* codes, size_t code_stride, const GroupScale* scales,
                   size_t scale_stride, float* products) {
  constexpr int kBlock = kBits == 4 ? 32 : 16;
  constexpr size_t kBlockBytes = static_cast<size_t>(kBlock) * kTile * kBits / 8;
  constexpr int kScaleBytes = kTile * (kHalf ? 2 : 4);
  const int blocks = tile.form.group / kBlock;
  const size_t group_bytes = tile.form.group_bytes();
  F y[kRows][kTileVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kTileVectors; ++v) y[r][v] = simd::zero();
  }
  const uint8_t* weights = tile.data;
  for (int g = 0; g < tile.groups; ++g) {
    I sums[kRows][kTileVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const I start =
          simd::spread(kMinima ? 0 : scales[static_cast<size_t>(r) * scale_stride + static_cast<size_t>(g)].offset);
      for (int v = 0; v < kTileVectors; ++v) sums[r][v] = start;
    }
    for (size_t line = 0; line < group_bytes; line += 64) __builtin_prefetch(weights + kAhead + line);
    for (int b = 0; b < blocks; ++b) {
      add_block<kBits, kRows>(weights, codes, code_stride, sums);
      weights += kBlockBytes;
      codes += kBlock * activation_bytes(kBits);
    }
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const F step = load_scale<kHalf>(weights, v);
      const F minimum = kMinima ? load_scale<kHalf>(weights + kScaleBytes, v) : simd::zero();
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const GroupScale& scale = scales[static_cast<size_t>(r) * scale_stride + static_cast<size_t>(g)];
        y[r][v] = simd::fma(simd::to_float(sums[r][v]), simd::mul(step, simd::set1(scale.scale)), y[r][v]);
        if (kMinima) y[r][v] = simd::fma(minimum, simd::set1(scale.sum), y[r][v]);
      }
    }
    weights += kScaleBytes * (kMinima ? 2 : 1);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kTileVectors; ++v) simd::store(products + r * kTile + v * kWidth, y[r][v]);
  }
}

template <int kBits, bool kMinima, bool kHalf>
void multiply(const QuantTile& tile, const QuantRows& rows, int count, float* products) {
  int done = 0;
  const auto some = [&](auto product, int at_once) {
    product(tile, rows.codes + static_cast<size_t>(done) * rows.code_stride, rows.code_stride,
            rows.scales + static_cast<size_t>(done) * rows.scale_stride, rows.scale_stride, products + done * kTile);
    done += at_once;
  };
  while (count - done >= kRowsAtOnce) some(multiply_rows<kBits, kMinima, kHalf, kRowsAtOnce>, kRowsAtOnce);
  if (count - done >= 4) some(multiply_rows<kBits, kMinima, kHalf, 4>, 4);
  if (count - done >= 2) some(multiply_rows<kBits, kMinima, kHalf, 2>, 2);
  if (count - done >= 1) some(multiply_rows<kBits, kMinima, kHalf, 1>, 1);
}

void multiply_tile(const QuantTile& tile, const QuantRows& rows, int count, float* products) {
  const QuantForm& form = tile.form;
  constexpr decltype(&multiply_tile) kinds[8] = {
      multiply<4, false, false>, multiply<4, false, true>, multiply<4, true, false>, multiply<4, true, true>,
      multiply<8, false, false>, multiply<8, false, true>, multiply<8, true, false>, multiply<8, true, true>,
  };
  kinds[(form.bits == 8 ? 4 : 0) + (form.minima ? 2 : 0) + (form.half_scales ? 1 : 0)](tile, rows, count, products);
}

// Scales, or minima, of a group's 16 rows in float32.
inline void load_scales(const QuantForm& form, const uint8_t* p, float* out) {
  for (int v = 0; v < kTileVectors; ++v) {
    simd::store(out + v * kWidth, form.half_scales ? load_scale<true>(p, v) : load_scale<false>(p, v));
  }
}

// The code of a column of a group and a row of the tile.
inline int code_of(const QuantForm& form, const uint8_t* codes, int column, int lane) {
  if (form.bits == 8) return codes[(column / 4 * kTile + lane) * 4 + column % 4];
  const int within = column % 32, quad = within / 4;
  const int byte = codes[column / 32 * (32 * kTile / 2) + (quad % 4 * kTile + lane) * 4 + within % 4];
  return quad < 4 ? byte & 15 : byte >> 4;
}

inline float weight_of(const QuantForm& form, int code, float scale, float minimum) {
  if (form.minima) return static_cast<float>(code) * scale + minimum;
  return static_cast<float>(code - (1 << (form.bits - 1))) * scale;
}

void gather_row(const QuantTile& tile, int lane, int64_t columns, float* out) {
  const QuantForm& form = tile.form;
  float scale[kTile], minimum[kTile] = {};
  const uint8_t* group = tile.data;
  for (int64_t first = 0; first < columns; first += form.group, group += form.group_bytes()) {
    load_scales(form, group + form.code_bytes(), scale);
    if (form.minima) load_scales(form, group + form.code_bytes() + form.scale_bytes(), minimum);
    const int count = static_cast<int>(columns - first < form.group ? columns - first : form.group);
    for (int c = 0; c < count; ++c) {
      out[first + c] = weight_of(form, code_of(form, group, c, lane), scale[lane], minimum[lane]);
    }
  }
}

void multiply_tile_exactly(const QuantTile& tile, const float* x, size_t stride, int64_t columns, int count,
                           float* products) {
  const QuantForm& form = tile.form;
  float weights[kTile], scale[kTile], minimum[kTile] = {};
  for (int i = 0; i < count * kTile; ++i) products[i] = 0.0f;
  const uint8_t* group = tile.data;
  for (int64_t first = 0; first < columns; first += form.group, group += form.group_bytes()) {
    load_scales(form, group + form.code_bytes(), scale);
    if (form.minima) load_scales(form, group + form.code_bytes() + form.scale_bytes(), minimum);
    const int64_t last = columns - first < form.group ? columns : first + form.group;
    for (int64_t column = first; column < last; ++column) {
      for (int lane = 0; lane < kTile; ++lane) {
        const int code = code_of(form, group, static_cast<int>(column - first), lane);
        weights[lane] = weight_of(form, code, scale[lane], minimum[lane]);
      }
      for (int r = 0; r < count; ++r) {
        const F factor = simd::set1(x[static_cast<size_t>(r) * stride + static_cast<size_t>(column)]);
        for (int v = 0; v < kTileVectors; ++v) {
          float* y = products + r * kTile + v * kWidth;
          simd::store(y, simd::fma(simd::load(weights + v * kWidth), factor, simd::load(y)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ortolan

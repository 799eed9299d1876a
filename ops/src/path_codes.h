// Single codes of quantised weights: rows dequantised, products in float32, nibbles made bytes.
// Included after path_quant.h.
#pragma once

#include "kernels.h"

namespace ortolan {
namespace {

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

// Many rows gain by bytes where the dot product reads bytes either way.
int expand_from(const QuantForm& form) { return kExpands && form.bits == 4 ? 32 : 0; }

QuantTile expand(const QuantTile& tile, uint8_t* bytes) {
  const QuantForm& form = tile.form;
  const QuantTile wide{bytes, form.expanded(), tile.groups};
  const uint8_t* group = tile.data;
  constexpr int kStep = kWidth * 4;
  const int half = 4 * kTile * 4;  // bytes of four quads
  for (int g = 0; g < tile.groups; ++g, group += form.group_bytes(), bytes += wide.form.group_bytes()) {
    for (size_t line = 0; line < form.group_bytes(); line += 64) ask_for(group + kAhead + line);
    if (form.bits == 8) {
      __builtin_memcpy(bytes, group, form.code_bytes());
    } else {
      for (int block = 0; block < form.group / 32; ++block) {
        for (int at = 0; at < half; at += kStep) {
          const I stored = simd::load_bytes(group + block * half + at);
          simd::store_bytes(bytes + 2 * block * half + at, simd::low_nibbles(stored));
          simd::store_bytes(bytes + (2 * block + 1) * half + at, simd::high_nibbles(stored));
        }
      }
    }
    float* sides = reinterpret_cast<float*>(bytes + wide.form.code_bytes());
    load_scales(form, group + form.code_bytes(), sides);
    if (form.minima) load_scales(form, group + form.code_bytes() + form.scale_bytes(), sides + kTile);
  }
  return wide;
}

}  // namespace
}  // namespace ortolan

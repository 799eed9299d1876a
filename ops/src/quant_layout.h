// Weights in few bits as the layout cpu-vnni keeps them (ops/layout.py writes it and says how the bytes lie), and
// rows of activations rounded to int8 for them.
//
// Plain structs over raw pointers: they cross from the library's baseline code to a path's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortolan {

// Output rows of a tile.
constexpr int kTile = 16;
// Columns that a matrix unit multiplies at once.
constexpr int kUnitDepth = 64;
// Columns of a group at most.
constexpr int kMaximumGroup = 128;

struct QuantForm {
  int bits;          // 4 or 8
  int group;         // columns that share a scale
  bool minima;       // code * scale + minimum, or (code - 2^(bits - 1)) * scale
  bool half_scales;  // scales and minima in binary16, or in binary32

  // Columns whose codes lie together: eight quads in nibbles, four in bytes.
  int block() const { return bits == 4 ? 32 : 16; }
  size_t code_bytes() const { return static_cast<size_t>(group) * kTile * static_cast<size_t>(bits) / 8; }
  size_t scale_bytes() const { return kTile * (half_scales ? sizeof(uint16_t) : sizeof(float)); }
  size_t group_bytes() const { return code_bytes() + scale_bytes() * (minima ? 2 : 1); }
  // What Kernels::expand makes of it.
  QuantForm expanded() const { return {8, group, minima, false}; }
  size_t expanded_bytes(int groups) const { return static_cast<size_t>(groups) * expanded().group_bytes(); }
};

// One tile: groups [0, groups) one after the other.
struct QuantTile {
  const uint8_t* data;
  QuantForm form;
  int groups;
};

// A few rows of activations in int8, each padded with zeros to whole groups: the first four codes of each row, then
// the next four of each, and so on (16 rows, for a matrix unit: of each group row after row); for each group the scales
// of a code, one a row, then one number a row more, which is the codes' sum times their scale for weights with minima,
// and else, as int32, the codes' sum times -2^(bits - 1): what a product of symmetric codes starts from.
struct QuantPanel {
  int8_t* codes;
  float* scales;
  int rows;
};

}  // namespace ortolan

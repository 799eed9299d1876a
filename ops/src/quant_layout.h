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
};

// One tile: groups [0, groups) one after the other.
struct QuantTile {
  const uint8_t* data;
  QuantForm form;
  int groups;
};

// What rounding a group of one row to int8 leaves besides its codes.
struct GroupScale {
  float scale;     // of a code
  float sum;       // of the codes, times scale: what a weight's minimum is multiplied by
  int32_t offset;  // of the codes, times -2^(bits - 1): what a product of symmetric codes starts from
};

// Rows of activations in int8, each padded with zeros to whole groups.
struct QuantRows {
  int8_t* codes;
  size_t code_stride;  // bytes of a row
  GroupScale* scales;
  size_t scale_stride;  // groups of a row
};

}  // namespace ortolan

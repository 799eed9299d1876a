// Products of panels of 16 rows with tiles of quantised weights by a matrix unit.
// Included after path_codes.h and tile_unit.h, or what stands for it.
//
// The unit adds up the integers of a group, 64 columns at a time. A group of 32 is multiplied together with what
// lies behind its codes, by activations that are zero there: full registers load and store faster than others.
// Sums go through memory to vectors, which scale and add them as multiply_rows does, in the same order, to the same
// bits. A step of the loop multiplies one group, stores the sums of an earlier one and scales those of one before
// that, in turns: the unit's instructions are few and long, and wait for one another when they come together.
#pragma once

#include <type_traits>

#include "kernels.h"

namespace ortolan {
namespace {

constexpr int kUnitRows = 16;
// Rows from which on groups of 32, which leave half of the unit idle, are faster by it than by vectors.
constexpr int kManyUnitRows = 64;
// Steps from a product to the storing of its sums, and to their scaling.
constexpr int kStoreLag = 2, kScaleLag = 3;
// Sets of registers and of memory for sums, used by groups in turn.
constexpr int kSlots = 4;

// Whether this thread's registers have their shapes; only one set of shapes is used.
bool& unit_is_shaped() {
  static thread_local bool shaped = false;
  return shaped;
}

void release_shapes() {
  if (!unit_is_shaped()) return;
  unit::release();
  unit_is_shaped() = false;
}

int unit_group_room(const QuantForm& form) { return form.group == 32 ? kUnitDepth : form.group; }

int unit_panel_rows(const QuantForm& form, int64_t rows) {
  const bool by_unit = rows >= (form.group < kUnitDepth ? kManyUnitRows : kUnitRows) && form.group >= 32;
  return by_unit ? kUnitRows : panel_rows(form, rows);
}

// Nibbles must become bytes, and the codes of groups of 32 lie where it is safe to read on.
int unit_expand_from(const QuantForm& form) {
  if (form.group < 32) return 0;
  if (form.group < kUnitDepth) return form.bits == 4 ? expand_from(form) : kManyUnitRows;
  return form.bits == 4 ? kUnitRows : 0;
}

// Where the codes of a row go in a panel of the unit: each group into its place, padded with zeros.
template <int kGroup>
struct UnitRow {
  static constexpr int kRoom = kGroup == 32 ? kUnitDepth : kGroup;
  int8_t* out;  // of the row's first group

  int8_t* place(int64_t group) { return out + group * kUnitRows * kRoom; }
  void finish(int64_t group) {
    if (kRoom > kGroup) __builtin_memset(place(group) + kGroup, 0, kRoom - kGroup);
  }
};

void quantise_unit_row(const QuantForm& form, const float* x, int64_t columns, const QuantPanel& panel, int row) {
  if (panel.rows < kUnitRows) return quantise_row(form, x, columns, panel, row);
  int8_t* const out = panel.codes + row * unit_group_room(form);
  by_group(form.group, [&](auto group) {
    constexpr int kGroup = decltype(group)::value;
    round_row<kGroup>(form, x, columns, panel.scales + row, panel.rows, UnitRow<kGroup>{out});
  });
}

// Before a group's first product, by the registers of a set.
template <int kSet>
inline void load_activations(const int8_t* x, ptrdiff_t row_bytes) {
  unit::zero<unit::kSums + kSet>();
  unit::load<unit::kActivations + kSet % 2>(x, row_bytes);
}

// The products of a group, one for each 64 columns; the activations of the first are loaded.
template <int kSet>
inline void multiply_codes(const int8_t* x, ptrdiff_t row_bytes, const uint8_t* codes, int room) {
  constexpr int kTo = unit::kSums + kSet, kLeft = unit::kActivations + kSet % 2, kRight = unit::kCodes + kSet % 2;
  unit::load<kRight>(codes, 4 * kTile);
  unit::multiply<kTo, kLeft, kRight>();
  for (int at = kUnitDepth; at < room; at += kUnitDepth) {
    unit::load<kLeft>(x + at, row_bytes);
    unit::load<kRight>(codes + at * kTile, 4 * kTile);
    unit::multiply<kTo, kLeft, kRight>();
  }
}

template <int kSet>
inline void store_sums(int32_t (&sums)[kSlots][kUnitRows][kTile]) {
  unit::store<unit::kSums + kSet>(sums[kSet], kTile * sizeof(int32_t));
}

// Scales and adds rows [kFirst, kLast) of a group's sums.
template <int kFirst, int kLast, bool kMinima, bool kHalf>
inline void scale_sums(const int32_t (&sums)[kUnitRows][kTile], const uint8_t* side, const float* scales,
                       F (&y)[kUnitRows][kTileVectors]) {
  constexpr int kScaleBytes = kTile * (kHalf ? 2 : 4);
#pragma GCC unroll 4
  for (int v = 0; v < kTileVectors; ++v) {
    const F factor = load_scale<kHalf>(side, v);
    const F minimum = kMinima ? load_scale<kHalf>(side + kScaleBytes, v) : simd::zero();
#pragma GCC unroll 16
    for (int r = kFirst; r < kLast; ++r) {
      I sum = simd::load_bytes(reinterpret_cast<const uint8_t*>(&sums[r][v * kWidth]));
      if (!kMinima) sum = simd::add_int(sum, spread_offset(scales + kUnitRows + r));
      y[r][v] = simd::fma(simd::to_float(sum), simd::mul(factor, simd::set1(scales[r])), y[r][v]);
      if (kMinima) y[r][v] = simd::fma(minimum, simd::set1(scales[kUnitRows + r]), y[r][v]);
    }
  }
}

template <bool kMinima, bool kHalf>
void multiply_by_unit(const QuantTile& tile, const QuantPanel& panel, float* products) {
  const int groups = tile.groups, room = unit_group_room(tile.form);
  const size_t group_bytes = tile.form.group_bytes();
  const ptrdiff_t row_bytes = room;
  const int8_t* x = panel.codes;
  const uint8_t* codes = tile.data;
  const uint8_t* side = tile.data + tile.form.code_bytes();
  const float* scales = panel.scales;
  alignas(64) int32_t sums[kSlots][kUnitRows][kTile];
  F y[kUnitRows][kTileVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kUnitRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) y[r][v] = simd::zero();
  }
  // Group g is multiplied in set kSet, earlier ones are stored and scaled.
  const auto step = [&](auto set, int g) __attribute__((always_inline)) {
    constexpr int kSet = decltype(set)::value;
    constexpr int kStored = (kSet + kSlots - kStoreLag) % kSlots, kScaled = (kSet + kSlots - kScaleLag) % kSlots;
    const bool multiplies = g < groups, stores = g >= kStoreLag && g - kStoreLag < groups;
    const bool scales_one = g >= kScaleLag && g - kScaleLag < groups;
    const int32_t(&of_group)[kUnitRows][kTile] = sums[kScaled];
    if (multiplies) {
      // Scales in binary32 are those of a tile that was expanded, which is in the cache.
      if constexpr (kHalf) {
        for (size_t line = 0; line < group_bytes; line += 64) __builtin_prefetch(codes + kAhead + line);
      }
      load_activations<kSet>(x, row_bytes);
    }
    if (scales_one) scale_sums<0, 5, kMinima, kHalf>(of_group, side, scales, y);
    if (multiplies) {
      multiply_codes<kSet>(x, row_bytes, codes, room);
      x += kUnitRows * room;
      codes += group_bytes;
    }
    if (scales_one) scale_sums<5, 10, kMinima, kHalf>(of_group, side, scales, y);
    if (stores) store_sums<kStored>(sums);
    if (scales_one) {
      scale_sums<10, kUnitRows, kMinima, kHalf>(of_group, side, scales, y);
      side += group_bytes;
      scales += 2 * kUnitRows;
    }
  };
  for (int g = 0; g < groups + kScaleLag; g += kSlots) {
    step(std::integral_constant<int, 0>{}, g);
    step(std::integral_constant<int, 1>{}, g + 1);
    step(std::integral_constant<int, 2>{}, g + 2);
    step(std::integral_constant<int, 3>{}, g + 3);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kUnitRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) simd::store(products + r * kTile + v * kWidth, y[r][v]);
  }
}

void multiply_tiles_by_unit(const QuantTile* tile, int tiles, const QuantPanel& panel, float* products) {
  if (panel.rows < kUnitRows) return multiply_tiles(tile, tiles, panel, products);
  if (!unit_is_shaped()) {
    unit::configure(kUnitRows, kUnitDepth);
    unit_is_shaped() = true;
  }
  constexpr decltype(&multiply_by_unit<true, true>) kinds[4] = {
      multiply_by_unit<false, false>, multiply_by_unit<false, true>, multiply_by_unit<true, false>,
      multiply_by_unit<true, true>};
  const QuantForm& form = tile->form;
  const auto multiply = kinds[(form.minima ? 2 : 0) + (form.half_scales ? 1 : 0)];
  for (int t = 0; t < tiles; ++t) multiply(tile[t], panel, products + t * kUnitRows * kTile);
}

constexpr Kernels tile_table(const char* name) {
  Kernels table = path_table(name);
  table.group_room = unit_group_room;
  table.panel_rows = unit_panel_rows;
  table.quantise_row = quantise_unit_row;
  table.expand_from = unit_expand_from;
  table.multiply_tiles = multiply_tiles_by_unit;
  table.release_unit = release_shapes;
  return table;
}

}  // namespace
}  // namespace ortolan

// Products of panels of 16 rows with tiles of quantised weights by a matrix unit.
// Included after path_codes.h and tile_unit.h, or what stands for it.
//
// The unit adds up the integers of a group, 64 columns at a time. A group of 32 is multiplied together with what lies
// behind its codes, by activations that are zero there: registers that are full load and store faster than others.
// Sums go through memory to vectors, which scale and add them as multiply_rows does, in the same order, to the same
// bits. A step of the loop multiplies one group, stores the sums of an earlier one and scales those of one before
// that, so that neither waits for the other.
#pragma once

#include "kernels.h"

namespace ortolan {
namespace {

constexpr int kUnitRows = 16;
// Rows from which on groups of 32, which leave half of the unit idle, are faster by it than by vectors.
constexpr int kManyUnitRows = 64;
// Steps between a product and the storing of its sums, and between that and their use.
constexpr int kStoreLag = 2, kScaleLag = 1;
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

void quantise_unit_row(const QuantForm& form, const float* x, int64_t columns, const QuantPanel& panel, int row) {
  if (panel.rows < kUnitRows) return quantise_row(form, x, columns, panel, row);
  const int64_t room = unit_group_room(form), row_bytes = (columns + form.group - 1) / form.group * room;
  int8_t* out = panel.codes + row * row_bytes;
  quantise_groups(form, x, columns, panel.scales + row, panel.rows, [&](int64_t group, const int8_t* codes) {
    __builtin_memcpy(out + group * room, codes, static_cast<size_t>(form.group));
    __builtin_memset(out + group * room + form.group, 0, static_cast<size_t>(room - form.group));
  });
}

// Multiplies one group by the registers of a set.
template <int kSet>
inline void sum_group(const int8_t* x, ptrdiff_t row_bytes, const uint8_t* codes, int room) {
  constexpr int kTo = unit::kSums + kSet, kLeft = unit::kActivations + kSet % 2, kRight = unit::kCodes + kSet % 2;
  unit::zero<kTo>();
  for (int at = 0; at < room; at += kUnitDepth) {
    unit::load<kLeft>(x + at, row_bytes);
    unit::load<kRight>(codes + at * kTile, 4 * kTile);
    unit::multiply<kTo, kLeft, kRight>();
  }
}

template <int kSet>
inline void store_sums(int32_t (&sums)[kSlots][kUnitRows][kTile]) {
  unit::store<unit::kSums + kSet>(sums[kSet], kTile * sizeof(int32_t));
}

template <bool kMinima, bool kHalf>
void multiply_by_unit(const QuantTile& tile, const QuantPanel& panel, float* products) {
  constexpr int kScaleBytes = kTile * (kHalf ? 2 : 4);
  const int groups = tile.groups, room = unit_group_room(tile.form);
  const size_t group_bytes = tile.form.group_bytes();
  const ptrdiff_t row_bytes = static_cast<ptrdiff_t>(groups) * room;
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
  for (int g = 0; g < groups + kStoreLag + kScaleLag; ++g) {
    if (g < groups) {
      for (size_t line = 0; line < group_bytes; line += 64) __builtin_prefetch(codes + kAhead + line);
      switch (g % kSlots) {
        case 0: sum_group<0>(x, row_bytes, codes, room); break;
        case 1: sum_group<1>(x, row_bytes, codes, room); break;
        case 2: sum_group<2>(x, row_bytes, codes, room); break;
        default: sum_group<3>(x, row_bytes, codes, room);
      }
      x += room;
      codes += group_bytes;
    }
    const int stored = g - kStoreLag, scaled = stored - kScaleLag;
    if (stored >= 0 && stored < groups) {
      switch (stored % kSlots) {
        case 0: store_sums<0>(sums); break;
        case 1: store_sums<1>(sums); break;
        case 2: store_sums<2>(sums); break;
        default: store_sums<3>(sums);
      }
    }
    if (scaled < 0) continue;
    const int32_t(&of_group)[kUnitRows][kTile] = sums[scaled % kSlots];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const F factor = load_scale<kHalf>(side, v);
      const F minimum = kMinima ? load_scale<kHalf>(side + kScaleBytes, v) : simd::zero();
#pragma GCC unroll 16
      for (int r = 0; r < kUnitRows; ++r) {
        I sum = simd::load_bytes(reinterpret_cast<const uint8_t*>(&of_group[r][v * kWidth]));
        if (!kMinima) sum = simd::add_int(sum, spread_offset(scales + kUnitRows + r));
        y[r][v] = simd::fma(simd::to_float(sum), simd::mul(factor, simd::set1(scales[r])), y[r][v]);
        if (kMinima) y[r][v] = simd::fma(minimum, simd::set1(scales[kUnitRows + r]), y[r][v]);
      }
    }
    side += group_bytes;
    scales += 2 * kUnitRows;
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

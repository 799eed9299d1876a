// Products of panels of 16 rows with tiles of quantised weights by a matrix unit.
// Included after path_codes.h and tile_unit.h, or what stands for it.
//
// The unit adds up the integers of a group, 64 columns at a time or the 32 of a short group. Sums go through memory to
// vectors, which scale and add them as multiply_rows does, in the same order, to the same bits. A step of the loop
// multiplies two groups of two tiles, stores the sums of the two before and scales those of the two before these, in
// turns. Two tiles share each row's scales as they are loaded, two groups the loading and storing of a row's sum.
#pragma once

#include <type_traits>

#include "kernels.h"

namespace ortolan {
namespace {

constexpr int kUnitRows = 16;
// Rows from which on groups of 32, which leave half of the unit idle, are faster by it than by vectors.
constexpr int kManyUnitRows = 64;
// Groups of a step.
constexpr int kStepGroups = 2;

// The depth that this thread's registers are shaped for, 0 for none.
int& shaped_depth() {
  static thread_local int depth = 0;
  return depth;
}

void release_shapes() {
  if (shaped_depth() == 0) return;
  unit::release();
  shaped_depth() = 0;
}

int unit_panel_rows(const QuantForm& form, int64_t rows) {
  const bool by_unit = rows >= (form.group < kUnitDepth ? kManyUnitRows : kUnitRows) && form.group >= 32;
  return by_unit ? kUnitRows : panel_rows(form, rows);
}

// Nibbles must become bytes; bytes of short groups lie closer to their scales once these are in binary32.
int unit_expand_from(const QuantForm& form) {
  if (form.group < 32) return 0;
  if (form.group < kUnitDepth) return form.bits == 4 ? expand_from(form) : kManyUnitRows;
  return form.bits == 4 ? kUnitRows : 0;
}

// Where the codes of a row go in a panel of the unit: each group into its place.
template <int kGroup>
struct UnitRow {
  int8_t* out;  // of the row's first group

  int8_t* place(int64_t group) { return out + group * kUnitRows * kGroup; }
  void finish(int64_t) {}
};

void quantise_unit_row(const QuantForm& form, const float* x, int64_t columns, const QuantPanel& panel, int row) {
  if (panel.rows < kUnitRows) return quantise_row(form, x, columns, panel, row);
  int8_t* const out = panel.codes + row * form.group;
  by_group(form.group, [&](auto group) {
    constexpr int kGroup = decltype(group)::value;
    round_row<kGroup>(form, x, columns, panel.scales + row, panel.rows, UnitRow<kGroup>{out});
  });
}

// Sums of a step's groups, of two tiles each.
using UnitSums = int32_t[kStepGroups][kTilesAtOnce][kUnitRows][kTile];

// Scales and minima of a step's groups, of two tiles each.
struct StepScales {
  F factor[kTileVectors][kStepGroups][kTilesAtOnce];
  F minimum[kTileVectors][kStepGroups][kTilesAtOnce];
};

template <bool kMinima, bool kHalf>
inline void load_step(const uint8_t* const (&side)[kTilesAtOnce], size_t group_bytes, int groups, StepScales& to) {
  constexpr int kScaleBytes = kTile * (kHalf ? 2 : 4);
#pragma GCC unroll 4
  for (int v = 0; v < kTileVectors; ++v) {
#pragma GCC unroll 2
    for (int g = 0; g < kStepGroups; ++g) {
#pragma GCC unroll 2
      for (int t = 0; t < kTilesAtOnce; ++t) {
        const uint8_t* of = side[t] + (g < groups ? g * group_bytes : 0);
        to.factor[v][g][t] = load_scale<kHalf>(of, v);
        if (kMinima) to.minimum[v][g][t] = load_scale<kHalf>(of + kScaleBytes, v);
      }
    }
  }
}

// Adds rows [kFirst, kLast) of the sums of kGroups groups and two tiles, scaled, to y.
template <int kFirst, int kLast, int kGroups, bool kMinima>
inline void scale_rows(const UnitSums& sums, const StepScales& step, const float* scales, float* y) {
#pragma GCC unroll 4
  for (int v = 0; v < kTileVectors; ++v) {
#pragma GCC unroll 16
    for (int r = kFirst; r < kLast; ++r) {
      F total[kTilesAtOnce];
#pragma GCC unroll 2
      for (int t = 0; t < kTilesAtOnce; ++t) total[t] = simd::load(y + (t * kUnitRows + r) * kTile + v * kWidth);
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        const float* of_row = scales + g * 2 * kUnitRows + r;
        const F scale = simd::set1(of_row[0]);
        const F of_sum = kMinima ? simd::set1(of_row[kUnitRows]) : simd::zero();
#pragma GCC unroll 2
        for (int t = 0; t < kTilesAtOnce; ++t) {
          I sum = simd::load_bytes(reinterpret_cast<const uint8_t*>(&sums[g][t][r][v * kWidth]));
          if (!kMinima) sum = simd::add_int(sum, spread_offset(of_row + kUnitRows));
          total[t] = simd::fma(simd::to_float(sum), simd::mul(step.factor[v][g][t], scale), total[t]);
          if (kMinima) total[t] = simd::fma(step.minimum[v][g][t], of_sum, total[t]);
        }
      }
#pragma GCC unroll 2
      for (int t = 0; t < kTilesAtOnce; ++t) simd::store(y + (t * kUnitRows + r) * kTile + v * kWidth, total[t]);
    }
  }
}

// Multiplies a group of one tile into register kSums + 2 * kGroup + kOf. Groups of up to 64 columns have a register of
// activations each, those of 128 both; tile 0 loads what tile 1 reads too.
template <int kGroup, int kOf, bool kDeep>
inline void multiply_group(const int8_t* x, ptrdiff_t row_bytes, const uint8_t* codes) {
  constexpr int kTo = unit::kSums + 2 * kGroup + kOf;
  constexpr int kLeft = unit::kActivations + (kDeep ? 0 : kGroup), kRight = unit::kCodes + (kDeep ? 0 : kOf);
  unit::zero<kTo>();
  if (kOf == 0) unit::load<kLeft>(x, row_bytes);
  unit::load<kRight>(codes, 4 * kTile);
  unit::multiply<kTo, kLeft, kRight>();
  if constexpr (kDeep) {
    if (kOf == 0) unit::load<unit::kActivations + 1>(x + kUnitDepth, row_bytes);
    unit::load<unit::kCodes + 1>(codes + kUnitDepth * kTile, 4 * kTile);
    unit::multiply<kTo, unit::kActivations + 1, unit::kCodes + 1>();
  }
}

template <bool kDeep, bool kMinima, bool kHalf>
void multiply_by_unit(const QuantTile* tile, const QuantPanel& panel, float* products) {
  const int groups = tile->groups, steps = (groups + kStepGroups - 1) / kStepGroups;
  const size_t code_bytes = tile->form.code_bytes(), group_bytes = tile->form.group_bytes();
  const ptrdiff_t row_bytes = tile->form.group;
  const int8_t* x = panel.codes;
  const uint8_t* codes[kTilesAtOnce] = {tile[0].data, tile[1].data};
  const uint8_t* side[kTilesAtOnce] = {tile[0].data + code_bytes, tile[1].data + code_bytes};
  const float* scales = panel.scales;
  alignas(64) UnitSums sums[2];
  for (int i = 0; i < kTilesAtOnce * kUnitRows * kTile; i += kWidth) simd::store(products + i, simd::zero());
  for (int step = 0; step < steps + 2; ++step) {
    StepScales of_step;
    const int scaled = step < 2 ? 0 : groups - kStepGroups * (step - 2);
    if (scaled > 0) load_step<kMinima, kHalf>(side, group_bytes, scaled, of_step);
    // A quarter of the step: a group of a tile, and the scaling of four rows around it.
    const auto quarter = [&](auto at) __attribute__((always_inline)) {
      constexpr int kQuarter = decltype(at)::value, kGroup = kQuarter / 2, kOf = kQuarter % 2, kRow = 4 * kQuarter;
      const int group = kStepGroups * step + kGroup;
      const auto scale_two = [&](auto first) __attribute__((always_inline)) {
        constexpr int kFirst = decltype(first)::value;
        if (scaled >= kStepGroups) {
          scale_rows<kFirst, kFirst + 2, kStepGroups, kMinima>(sums[step % 2], of_step, scales, products);
        } else if (scaled > 0) {
          scale_rows<kFirst, kFirst + 2, 1, kMinima>(sums[step % 2], of_step, scales, products);
        }
      };
      if (step >= 1 && group - kStepGroups < groups) {
        unit::store<unit::kSums + kQuarter>(sums[(step + 1) % 2][kGroup][kOf], kTile * sizeof(int32_t));
      }
      scale_two(std::integral_constant<int, kRow>{});
      if (group < groups) {
        // Scales in binary32 are those of a tile that was expanded, which is in the cache.
        if constexpr (kHalf) {
          for (size_t line = 0; line < group_bytes; line += 64) __builtin_prefetch(codes[kOf] + kAhead + line);
        }
        multiply_group<kGroup, kOf, kDeep>(x, row_bytes, codes[kOf]);
        codes[kOf] += group_bytes;
        if (kOf == 1) x += kUnitRows * row_bytes;
      }
      scale_two(std::integral_constant<int, kRow + 2>{});
    };
    quarter(std::integral_constant<int, 0>{});
    quarter(std::integral_constant<int, 1>{});
    quarter(std::integral_constant<int, 2>{});
    quarter(std::integral_constant<int, 3>{});
    if (step < 2) continue;
    for (const uint8_t*& of_tile : side) of_tile += kStepGroups * group_bytes;
    scales += kStepGroups * 2 * kUnitRows;
  }
}

void multiply_tiles_by_unit(const QuantTile* tile, int tiles, const QuantPanel& panel, float* products) {
  if (panel.rows < kUnitRows) return multiply_tiles(tile, tiles, panel, products);
  const QuantForm& form = tile->form;
  const int depth = form.group < kUnitDepth ? form.group : kUnitDepth;
  if (shaped_depth() != depth) {
    unit::configure(kUnitRows, depth);
    shaped_depth() = depth;
  }
  constexpr decltype(&multiply_by_unit<true, true, true>) kinds[8] = {
      multiply_by_unit<false, false, false>, multiply_by_unit<false, false, true>,
      multiply_by_unit<false, true, false>,  multiply_by_unit<false, true, true>,
      multiply_by_unit<true, false, false>,  multiply_by_unit<true, false, true>,
      multiply_by_unit<true, true, false>,   multiply_by_unit<true, true, true>};
  const auto multiply =
      kinds[(form.group > kUnitDepth ? 4 : 0) + (form.minima ? 2 : 0) + (form.half_scales ? 1 : 0)];
  if (tiles == kTilesAtOnce) return multiply(tile, panel, products);
  // The last of an odd number is multiplied twice.
  const QuantTile both[kTilesAtOnce] = {tile[0], tile[0]};
  alignas(64) float twice[kTilesAtOnce * kUnitRows * kTile];
  multiply(both, panel, twice);
  __builtin_memcpy(products, twice, sizeof twice / kTilesAtOnce);
}

constexpr Kernels tile_table(const char* name) {
  Kernels table = path_table(name);
  table.panel_rows = unit_panel_rows;
  table.quantise_row = quantise_unit_row;
  table.expand_from = unit_expand_from;
  table.multiply_tiles = multiply_tiles_by_unit;
  table.release_unit = release_shapes;
  return table;
}

}  // namespace
}  // namespace ortolan

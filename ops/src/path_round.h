// Rounding activations to int8 in panels of rows, over a path's vectors.
// Included after path_elementwise.h and one dot_*.h.
#pragma once

#include <type_traits>

#include "kernels.h"

namespace ortolan {
namespace {

using simd::I;

// Rows whose sums fit the registers beside a block of codes.
constexpr int kPanelMost = kWidth == 16 ? 8 : 4;
// A group below this is rounded to zeros: the reciprocal of its step would overflow.
constexpr float kSmallestActivation = 1e-30f;

// Groups of a row whose scales are found together.
constexpr int kGroupsAtOnce = 16;

int group_room(const QuantForm& form) { return form.group * activation_bytes(form.bits); }

int panel_rows(const QuantForm&, int64_t rows) {
  return rows >= kPanelMost ? kPanelMost : rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
}

// Where the codes of a row go in a panel: a group at a time into memory of its own, and from there quad by quad. With
// two bytes a code they become words, of each quad the even two before the odd two, as dot_pairs.h reads them.
template <int kGroup, int kBytes>
struct QuadRow {
  int8_t* out;  // of the row's first quad
  ptrdiff_t rows;
  alignas(64) int8_t codes[kGroup];

  int8_t* place(int64_t) { return codes; }
  void finish(int64_t group) {
    int8_t* to = out + group * kGroup * rows * kBytes;
    for (int i = 0; i < kGroup; i += 4, to += rows * 4 * kBytes) {
      if constexpr (kBytes == 1) {
        __builtin_memcpy(to, codes + i, 4);
      } else {
        const int16_t words[4] = {codes[i], codes[i + 2], codes[i + 1], codes[i + 3]};
        __builtin_memcpy(to, words, sizeof words);
      }
    }
  }
};

// The largest magnitudes of some groups; and adds to `poison` what makes the row's products NaN where it holds
// infinities or NaN: x * 0 is 0 or NaN.
template <int kGroup>
inline void largest_of_groups(const float* x, int groups, float* largest, F* poison) {
  for (int g = 0; g < groups; ++g, x += kGroup) {
    F top = simd::zero();
#pragma GCC unroll 8
    for (int i = 0; i < kGroup; i += kWidth) {
      const F v = simd::load(x + i);
      top = simd::max(top, simd::abs(v));
      *poison = simd::fma(v, simd::zero(), *poison);
    }
    largest[g] = simd::maximum(top);
  }
}

// Rounds some groups of a row, `first` and those that follow; a vector of scales at a time, so that no group waits for
// the division of the one before.
template <int kGroup, typename Row>
inline void round_groups(const QuantForm& form, const float* x, int64_t first, int groups, float* scales,
                         int scales_apart, Row& row, F* poison) {
  alignas(64) float largest[kGroupsAtOnce] = {}, inverse[kGroupsAtOnce], scale[kGroupsAtOnce];
  largest_of_groups<kGroup>(x, groups, largest, poison);
  const F all = simd::set1(127.0f), least = simd::set1(kSmallestActivation);
#pragma GCC unroll 4
  for (int i = 0; i < kGroupsAtOnce; i += kWidth) {
    const F top = simd::load(largest + i);
    simd::store(inverse + i, simd::if_less(top, least, simd::zero(), simd::div(all, top)));
    simd::store(scale + i, simd::if_less(top, least, simd::zero(), simd::div(top, all)));
  }
  const int32_t zero = 1 << (form.bits - 1);
  for (int g = 0; g < groups; ++g, x += kGroup) {
    const F factor = simd::set1(inverse[g]);
    int8_t* codes = row.place(first + g);
    I total = simd::spread(0);
#pragma GCC unroll 8
    for (int i = 0; i < kGroup; i += kWidth) {
      const I code = simd::to_int(simd::mul(simd::load(x + i), factor));
      total = simd::add_int(total, code);
      simd::store_int8(codes + i, code);
    }
    row.finish(first + g);
    const float sum = simd::sum(simd::to_float(total));
    float* at = scales + (first + g) * 2 * scales_apart;
    at[0] = scale[g];
    if (form.minima) {
      at[scales_apart] = scale[g] * sum;
    } else {
      const int32_t offset = -zero * static_cast<int32_t>(sum);
      __builtin_memcpy(at + scales_apart, &offset, sizeof offset);
    }
  }
}

// Rounds a row; the scales of its groups lie `scales_apart` from one another.
template <int kGroup, typename Row>
void round_row(const QuantForm& form, const float* x, int64_t columns, float* scales, int scales_apart, Row&& row) {
  F poison = simd::zero();
  const int64_t whole = columns / kGroup, groups = (columns + kGroup - 1) / kGroup;
  for (int64_t first = 0; first < whole; first += kGroupsAtOnce) {
    const int some = static_cast<int>(whole - first < kGroupsAtOnce ? whole - first : kGroupsAtOnce);
    round_groups<kGroup>(form, x + first * kGroup, first, some, scales, scales_apart, row, &poison);
  }
  if (whole < groups) {
    alignas(64) float padded[kGroup];
    for (int64_t i = 0; i < kGroup; ++i) padded[i] = whole * kGroup + i < columns ? x[whole * kGroup + i] : 0.0f;
    round_groups<kGroup>(form, padded, whole, 1, scales, scales_apart, row, &poison);
  }
  // The row's products add all its groups: they are NaN where one scale is.
  scales[(groups - 1) * 2 * scales_apart] += simd::sum(poison);
}

// Calls `run` with the number of columns of a group as a constant.
template <typename Run>
inline void by_group(int group, const Run& run) {
  if (group == 16) return run(std::integral_constant<int, 16>{});
  if (group == 32) return run(std::integral_constant<int, 32>{});
  if (group == 64) return run(std::integral_constant<int, 64>{});
  run(std::integral_constant<int, kMaximumGroup>{});
}

void quantise_row(const QuantForm& form, const float* x, int64_t columns, const QuantPanel& panel, int row) {
  const int bytes = activation_bytes(form.bits);
  int8_t* const out = panel.codes + row * 4 * bytes;
  by_group(form.group, [&](auto group) {
    constexpr int kGroup = decltype(group)::value;
    if (bytes == 1) {
      return round_row<kGroup>(form, x, columns, panel.scales + row, panel.rows,
                               QuadRow<kGroup, 1>{out, panel.rows, {}});
    }
    round_row<kGroup>(form, x, columns, panel.scales + row, panel.rows, QuadRow<kGroup, 2>{out, panel.rows, {}});
  });
}

}  // namespace
}  // namespace ortolan

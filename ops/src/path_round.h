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

int group_room(const QuantForm& form) { return form.group * activation_bytes(form.bits); }

int panel_rows(const QuantForm&, int64_t rows) {
  return rows >= kPanelMost ? kPanelMost : rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
}

// The quads of one group into a panel. With two bytes a code they become words, of each quad the even two before the
// odd two, as dot_pairs.h reads them.
template <int kBytes>
inline void spread_quads(const int8_t* codes, int count, int rows, int8_t* out) {
  for (int i = 0; i < count; i += 4, out += static_cast<ptrdiff_t>(rows) * 4 * kBytes) {
    if constexpr (kBytes == 1) {
      __builtin_memcpy(out, codes + i, 4);
    } else {
      const int16_t words[4] = {codes[i], codes[i + 2], codes[i + 1], codes[i + 3]};
      __builtin_memcpy(out, words, sizeof words);
    }
  }
}

// Rounds a row; `store` takes each group's number and codes, the scales lie `scales_apart` from one another.
template <typename Store>
void quantise_groups(const QuantForm& form, const float* x, int64_t columns, float* scales, int scales_apart,
                     const Store& store) {
  const int32_t zero = 1 << (form.bits - 1);
  alignas(64) float padded[kMaximumGroup];
  alignas(64) int8_t codes[kMaximumGroup];
  F poison = simd::zero();
  for (int64_t first = 0; first < columns; first += form.group) {
    const float* in = x + first;
    if (columns - first < form.group) {
      for (int64_t i = 0; i < form.group; ++i) padded[i] = first + i < columns ? in[i] : 0.0f;
      in = padded;
    }
    F top = simd::zero();
    for (int i = 0; i < form.group; i += kWidth) {
      const F v = simd::load(in + i);
      top = simd::max(top, simd::abs(v));
      poison = simd::add(poison, simd::sub(v, v));
    }
    const float largest = simd::maximum(top);
    const bool counts = largest >= kSmallestActivation;
    const F inverse = simd::set1(counts ? 127.0f / largest : 0.0f);
    I total = simd::spread(0);
    for (int i = 0; i < form.group; i += kWidth) {
      const I code = simd::to_int(simd::mul(simd::load(in + i), inverse));
      total = simd::add_int(total, code);
      simd::store_int8(codes + i, code);
    }
    store(first / form.group, codes);
    const float scale = counts ? largest / 127.0f : 0.0f;
    const float sum = simd::sum(simd::to_float(total));
    scales[0] = scale;
    if (form.minima) {
      scales[scales_apart] = scale * sum;
    } else {
      const int32_t offset = -zero * static_cast<int32_t>(sum);
      __builtin_memcpy(scales + scales_apart, &offset, sizeof offset);
    }
    scales += 2 * scales_apart;
  }
  // The sum of x - x is 0, or NaN where x holds infinities or NaN: then the row's products, which add all its groups,
  // are NaN too.
  scales[-2 * scales_apart] += simd::sum(poison);
}

void quantise_row(const QuantForm& form, const float* x, int64_t columns, const QuantPanel& panel, int row) {
  const auto run = [&](auto bytes) {
    constexpr int kBytes = decltype(bytes)::value;
    quantise_groups(form, x, columns, panel.scales + row, panel.rows, [&](int64_t group, const int8_t* codes) {
      int8_t* out = panel.codes + (group * form.group * panel.rows + row * 4) * kBytes;
      spread_quads<kBytes>(codes, form.group, panel.rows, out);
    });
  };
  if (activation_bytes(form.bits) == 1) return run(std::integral_constant<int, 1>{});
  run(std::integral_constant<int, 2>{});
}

}  // namespace
}  // namespace ortolan

// Products of rows with weights in binary32, over a path's vectors. Included after path_elementwise.h.
//
// Every product of a row with an output adds its columns in one order, lane by lane, then the lanes: how many rows and
// outputs are multiplied at once changes no bit.
#pragma once

#include "kernels.h"

namespace ortolan {
namespace {

// Sums that registers hold beside a column of weights and of rows.
constexpr int kPlainRows = kWidth == 16 ? 4 : 2;
constexpr int kPlainOutputs = 4;

template <int kRows, int kOutputs>
void multiply_plain_block(const float* weights, const float* x, int64_t columns, float* products) {
  F sums[kRows][kOutputs];
  for (auto& of_row : sums) {
    for (F& sum : of_row) sum = simd::zero();
  }
  const auto add_columns = [&](const auto& weight_at, const auto& row_at) {
    F of_rows[kRows];
    for (int r = 0; r < kRows; ++r) of_rows[r] = row_at(r);
    for (int o = 0; o < kOutputs; ++o) {
      const F weight = weight_at(o);
      for (int r = 0; r < kRows; ++r) sums[r][o] = simd::fma(weight, of_rows[r], sums[r][o]);
    }
  };
  int64_t column = 0;
  for (; column + kWidth <= columns; column += kWidth) {
    add_columns([&](int o) { return simd::load(weights + o * columns + column); },
                [&](int r) { return simd::load(x + r * columns + column); });
  }
  if (column < columns) {
    const auto left = static_cast<size_t>(columns - column);
    add_columns([&](int o) { return Padded(weights + o * columns + column, left).vector(); },
                [&](int r) { return Padded(x + r * columns + column, left).vector(); });
  }
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOutputs; ++o) products[r * kTile + o] = simd::sum(sums[r][o]);
  }
}

template <int kRows>
void multiply_plain_rows(const float* weights, int outputs, const float* x, int64_t columns, float* products) {
  int o = 0;
  for (; o + kPlainOutputs <= outputs; o += kPlainOutputs) {
    multiply_plain_block<kRows, kPlainOutputs>(weights + o * columns, x, columns, products + o);
  }
  for (; o < outputs; ++o) multiply_plain_block<kRows, 1>(weights + o * columns, x, columns, products + o);
}

void multiply_plain(const float* weights, int outputs, const float* x, int64_t columns, int rows, float* products) {
  int r = 0;
  for (; r + kPlainRows <= rows; r += kPlainRows) {
    multiply_plain_rows<kPlainRows>(weights, outputs, x + r * columns, columns, products + r * kTile);
  }
  for (; r < rows; ++r) multiply_plain_rows<1>(weights, outputs, x + r * columns, columns, products + r * kTile);
}

}  // namespace
}  // namespace ortolan

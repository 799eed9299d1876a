// Scores of query rows against the keys of one chunk, over a path's vectors.
// Included after one vector_*.h and path_elementwise.h.
//
// Two ways to the same bits. Few rows read keys as they lie and add a vector of partial sums up at its end; many
// rows read keys turned to columns, where a partial sum is a vector of its own. Either way lane l of a row's partial
// sums is the sum of q[d] * k[d] over d = l, l + kWidth, ... in that order, and the lanes are added up as
// simd::quarter_sums and simd::vector_sums add them.
#pragma once

#include "kernels.h"

namespace ortolan {
namespace {

using simd::F;
using simd::kWidth;

constexpr int kQuarters = kWidth / 4;
// Query rows that read one key together: as many as the registers hold beside four keys.
constexpr int kFewRows = kWidth == 16 ? 4 : 3;
constexpr int kPanelRows = kWidth == 16 ? 4 : kWidth == 8 ? 3 : 2;

template <bool kHalf>
inline F load_cached(const void* row, int dim) {
  if constexpr (kHalf) {
    return simd::load_half(static_cast<const uint16_t*>(row) + dim);
  } else {
    return simd::load(static_cast<const float*>(row) + dim);
  }
}

// Asks for the cache lines of rows [start, end) of keys or values, each of `bytes`.
inline void prefetch_rows(const void* const* row, int start, int end, int bytes) {
  for (int j = start; j < end; ++j) {
    for (int b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(row[j]) + b);
  }
}

// Scores of kWidth keys against kRows queries.
template <bool kHalf, int kRows>
inline void score_few(const float* queries, int stride, const void* const* key, float* scores) {
  F quarters[kRows][kQuarters];
#pragma GCC unroll 4
  for (int four = 0; four < kQuarters; ++four) {
    F total[kRows][4];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) total[r][k] = simd::zero();
    }
    for (int d = 0; d < stride; d += kWidth) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const F x = load_cached<kHalf>(key[4 * four + k], d);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          total[r][k] = simd::fma(simd::load(queries + static_cast<ptrdiff_t>(r) * stride + d), x, total[r][k]);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      quarters[r][four] = simd::quarter_sums(total[r][0], total[r][1], total[r][2], total[r][3]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) simd::store(scores + r * kChunk, simd::vector_sums(quarters[r]));
}

// All rows against keys [begin, end), kWidth at a time; keys past the last repeat it.
template <bool kHalf>
void score_rows(const ChunkTask& task, int begin, int end) {
  constexpr decltype(&score_few<kHalf, 1>) kinds[4] = {score_few<kHalf, 1>, score_few<kHalf, 2>,
                                                       score_few<kHalf, 3>, score_few<kHalf, kFewRows>};
  const int key_bytes = task.head_stride * (kHalf ? 2 : 4), value_bytes = task.value_stride * (kHalf ? 2 : 4);
  for (int j = begin / kWidth * kWidth; j < end; j += kWidth) {
    // The keys of the next round, and the values that follow once all scores are known.
    const int next = j + kWidth;
    prefetch_rows(task.key, next < end ? next : end, next + kWidth < end ? next + kWidth : end, key_bytes);
    prefetch_rows(task.value, j < begin ? begin : j, next < end ? next : end, value_bytes);
    const void* key[kWidth];
    for (int k = 0; k < kWidth; ++k) key[k] = task.key[j + k < begin ? begin : j + k < end ? j + k : end - 1];
    for (int r = 0; r < task.rows;) {
      const int left = task.rows - r;
      const int rows = left <= kFewRows ? left : left == kFewRows + 1 ? 2 : kFewRows;
      kinds[rows - 1](task.queries + static_cast<ptrdiff_t>(r) * task.head_stride, task.head_stride, key,
                      task.scores + static_cast<ptrdiff_t>(r) * kChunk + j);
      r += rows;
    }
  }
}

// Keys [start, start + kWidth) as columns: panel[d] holds dim d of each.
template <bool kHalf>
void turn_keys(const void* const* key, int start, int begin, int end, int stride, float* panel) {
  for (int d = 0; d < stride; d += kWidth) {
    F square[kWidth];
    for (int k = 0; k < kWidth; ++k) {
      const int j = start + k;
      square[k] = load_cached<kHalf>(key[j < begin ? begin : j < end ? j : end - 1], d);
    }
    simd::transpose(square);
    for (int k = 0; k < kWidth; ++k) simd::store(panel + static_cast<ptrdiff_t>(d + k) * kWidth, square[k]);
  }
}

// Scores of a panel's keys against kRows queries.
template <int kRows>
inline void score_panel(const float* queries, int stride, const float* panel, float* scores) {
  F front[kRows], whole[kRows];
#pragma GCC unroll 4
  for (int quarter = 0; quarter < kQuarters; ++quarter) {
    F half[kRows][2];
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
      // Lanes pair and pair + 2 of the quarter.
      F a[kRows], b[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) a[r] = b[r] = simd::zero();
      for (int d = 4 * quarter + pair; d < stride; d += kWidth) {
        const F x = simd::load(panel + static_cast<ptrdiff_t>(d) * kWidth);
        const F y = simd::load(panel + static_cast<ptrdiff_t>(d + 2) * kWidth);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const float* query = queries + static_cast<ptrdiff_t>(r) * stride + d;
          a[r] = simd::fma(simd::set1(query[0]), x, a[r]);
          b[r] = simd::fma(simd::set1(query[2]), y, b[r]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) half[r][pair] = simd::add(a[r], b[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const F sum = simd::add(half[r][0], half[r][1]);
      if (quarter % 2 == 0) {
        front[r] = sum;
      } else {
        const F two = simd::add(front[r], sum);
        whole[r] = quarter == 1 ? two : simd::add(whole[r], two);
      }
      if (kQuarters == 1) whole[r] = sum;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) simd::store(scores + r * kChunk, whole[r]);
}

// All rows against keys [begin, end), each panel of keys turned once.
template <bool kHalf>
void score_panels(const ChunkTask& task, int begin, int end) {
  constexpr decltype(&score_panel<1>) kinds[4] = {score_panel<1>, score_panel<2>, score_panel<3>,
                                                  score_panel<kPanelRows>};
  for (int j = begin / kWidth * kWidth; j < end; j += kWidth) {
    turn_keys<kHalf>(task.key, j, begin, end, task.head_stride, task.panel);
    for (int r = 0; r < task.rows;) {
      const int rows = task.rows - r < kPanelRows ? task.rows - r : kPanelRows;
      bool seen = false;
      for (int i = r; i < r + rows; ++i) seen = seen || (task.first[i] < j + kWidth && task.last[i] > j);
      if (seen) {
        kinds[rows - 1](task.queries + static_cast<ptrdiff_t>(r) * task.head_stride, task.head_stride, task.panel,
                        task.scores + static_cast<ptrdiff_t>(r) * kChunk + j);
      }
      r += rows;
    }
  }
}

}  // namespace
}  // namespace ortolan

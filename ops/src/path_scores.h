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
// Vectors of keys in a panel, and query rows that read it together: what the registers hold.
constexpr int kPanelVectors = kWidth == 16 ? 2 : 1;
constexpr int kPanelKeys = kPanelVectors * kWidth;
constexpr int kQueryRows = kWidth == 16 ? 4 : kWidth == 8 ? 3 : 2;

template <bool kHalf>
inline F load_cached(const void* row, int dim) {
  if constexpr (kHalf) {
    return simd::load_half(static_cast<const uint16_t*>(row) + dim);
  } else {
    return simd::load(static_cast<const float*>(row) + dim);
  }
}

// Asks for the cache lines of rows [start, end), each of `bytes`.
inline void prefetch_rows(const void* const* row, int start, int end, int bytes) {
  for (int j = start; j < end; ++j) {
    for (int b = 0; b < bytes; b += 64) ask_for(static_cast<const char*>(row[j]) + b);
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
  const int value_bytes = task.value_stride * (kHalf ? 2 : 4);
  for (int j = begin / kWidth * kWidth; j < end; j += kWidth) {
    // The values that follow once all scores are known.
    const int next = j + kWidth;
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

// Keys [start, start + kPanelKeys) as columns: panel[d] holds dim d of each.
template <bool kHalf>
void turn_keys(const void* const* key, int start, int begin, int end, int stride, float* panel) {
  for (int v = 0; v < kPanelVectors; ++v) {
    for (int d = 0; d < stride; d += kWidth) {
      F square[kWidth];
      for (int k = 0; k < kWidth; ++k) {
        const int j = start + v * kWidth + k;
        square[k] = load_cached<kHalf>(key[j < begin ? begin : j < end ? j : end - 1], d);
      }
      simd::transpose(square);
      for (int k = 0; k < kWidth; ++k) {
        simd::store(panel + static_cast<ptrdiff_t>(d + k) * kPanelKeys + v * kWidth, square[k]);
      }
    }
  }
}

// Partial sums of lanes `lane` and `lane` + 2 of a quarter, added, of a panel's keys and kRows queries.
template <int kRows>
inline void sum_lanes(const float* queries, int stride, const float* panel, int lane,
                      F (&sums)[kRows][kPanelVectors]) {
  F a[kRows][kPanelVectors], b[kRows][kPanelVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) a[r][v] = b[r][v] = simd::zero();
  }
  for (int d = lane; d < stride; d += kWidth) {
    const float* keys = panel + static_cast<ptrdiff_t>(d) * kPanelKeys;
    F x[kPanelVectors], y[kPanelVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) {
      x[v] = simd::load(keys + v * kWidth);
      y[v] = simd::load(keys + 2 * kPanelKeys + v * kWidth);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const float* query = queries + static_cast<ptrdiff_t>(r) * stride + d;
      const F first = simd::set1(query[0]), second = simd::set1(query[2]);
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVectors; ++v) {
        a[r][v] = simd::fma(first, x[v], a[r][v]);
        b[r][v] = simd::fma(second, y[v], b[r][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = simd::add(a[r][v], b[r][v]);
  }
}

// Scores of a panel's keys against kRows queries: quarters in neighbouring pairs, then the pairs.
template <int kRows>
void score_panel(const float* queries, int stride, const float* panel, float* scores) {
  F whole[kRows][kPanelVectors];
  constexpr int kTogether = kQuarters < 2 ? 1 : 2;
#pragma GCC unroll 2
  for (int quarter = 0; quarter < kQuarters; quarter += kTogether) {
    F pair[kRows][kPanelVectors];
#pragma GCC unroll 2
    for (int q = 0; q < kTogether; ++q) {
      F even[kRows][kPanelVectors], odd[kRows][kPanelVectors];
      sum_lanes<kRows>(queries, stride, panel, 4 * (quarter + q), even);
      sum_lanes<kRows>(queries, stride, panel, 4 * (quarter + q) + 1, odd);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kPanelVectors; ++v) {
          const F sum = simd::add(even[r][v], odd[r][v]);
          pair[r][v] = q == 0 ? sum : simd::add(pair[r][v], sum);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVectors; ++v) {
        whole[r][v] = quarter == 0 ? pair[r][v] : simd::add(whole[r][v], pair[r][v]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kPanelVectors; ++v) simd::store(scores + r * kChunk + v * kWidth, whole[r][v]);
  }
}

// All rows against keys [begin, end), kWidth of them widened once.
template <bool kHalf>
void score_widened(const ChunkTask& task, int begin, int end) {
  constexpr decltype(&score_few<false, 1>) kinds[4] = {score_few<false, 1>, score_few<false, 2>, score_few<false, 3>,
                                                       score_few<false, kFewRows>};
  for (int j = begin / kWidth * kWidth; j < end; j += kWidth) {
    const void* key[kWidth];
    for (int k = 0; k < kWidth; ++k) {
      const void* from = task.key[j + k < begin ? begin : j + k < end ? j + k : end - 1];
      float* wide = task.panel + static_cast<ptrdiff_t>(k) * task.head_stride;
      for (int d = 0; kHalf && d < task.head_stride; d += kWidth) simd::store(wide + d, load_cached<kHalf>(from, d));
      key[k] = kHalf ? wide : from;
    }
    for (int r = 0; r < task.rows;) {
      const int left = task.rows - r;
      const int rows = left <= kFewRows ? left : left == kFewRows + 1 ? 2 : kFewRows;
      bool seen = false;
      for (int i = r; i < r + rows; ++i) seen = seen || (task.first[i] < j + kWidth && task.last[i] > j);
      if (seen) {
        kinds[rows - 1](task.queries + static_cast<ptrdiff_t>(r) * task.head_stride, task.head_stride, key,
                        task.scores + static_cast<ptrdiff_t>(r) * kChunk + j);
      }
      r += rows;
    }
  }
}

// All rows against keys [begin, end), each panel of keys turned once.
template <bool kHalf>
void score_panels(const ChunkTask& task, int begin, int end) {
  constexpr decltype(&score_panel<1>) kinds[4] = {score_panel<1>, score_panel<2>, score_panel<3>,
                                                  score_panel<kQueryRows>};
  for (int j = begin / kPanelKeys * kPanelKeys; j < end; j += kPanelKeys) {
    turn_keys<kHalf>(task.key, j, begin, end, task.head_stride, task.panel);
    for (int r = 0; r < task.rows;) {
      const int rows = task.rows - r < kQueryRows ? task.rows - r : kQueryRows;
      bool seen = false;
      for (int i = r; i < r + rows; ++i) seen = seen || (task.first[i] < j + kPanelKeys && task.last[i] > j);
      if (seen) {
        kinds[rows - 1](task.queries + static_cast<ptrdiff_t>(r) * task.head_stride, task.head_stride, task.panel,
                        task.scores + static_cast<ptrdiff_t>(r) * kChunk + j);
      }
      r += rows;
    }
  }
}

// Turned keys need no sums across lanes, which registers pay for with vectors of 16 alone.
template <bool kHalf>
void score_many(const ChunkTask& task, int begin, int end) {
  if constexpr (kWidth == 16) {
    score_panels<kHalf>(task, begin, end);
  } else {
    score_widened<kHalf>(task, begin, end);
  }
}

}  // namespace
}  // namespace ortolan

// Attention of query rows to one chunk of keys, and the merging of chunks, over a path's vectors.
// Included after one vector_*.h, path_math.h, path_elementwise.h and path_scores.h.
//
// What a row computes is independent of the rows beside it: a score is a sum over the head's dims in one fixed
// order, a weighted value a sum over the chunk's keys in their order, and masked keys take no part.
#pragma once

#include "kernels.h"

namespace ortolan {
namespace {

// From so many rows on, laying keys out and widening values once is cheaper than doing so for each few rows.
constexpr int kManyRows = 20;
// With vectors of 8, whose conversion is an instruction, a chunk's values in binary32 would fill the nearest cache.
constexpr bool kWidensValues = kWidth != 8;

// Turns a row's scores into 2^(score - maximum), zero outside [first, last). Whole vectors from the chunk's start.
inline void softmax_row(float* scores, int first, int last, float softcap, float* maximum, float* total) {
  const float minus_infinity = -__builtin_inff();
  const int begin = first / kWidth * kWidth;
  const int end = (last + kWidth - 1) / kWidth * kWidth;
  if (softcap > 0.0f) {
    const F cap = simd::set1(softcap), inverse = simd::set1(1.0f / softcap);
    for (int j = begin; j < end; j += kWidth) {
      simd::store(scores + j, simd::mul(cap, simd::tanh(simd::mul(simd::load(scores + j), inverse))));
    }
  }
  for (int j = begin; j < first; ++j) scores[j] = minus_infinity;
  for (int j = last; j < end; ++j) scores[j] = minus_infinity;
  F highest = simd::set1(minus_infinity);
  for (int j = begin; j < end; j += kWidth) highest = simd::max(simd::load(scores + j), highest);
  *maximum = simd::maximum(highest);
  const F shift = simd::set1(*maximum);
  F sum = simd::zero();
  for (int j = begin; j < end; j += kWidth) {
    const F e = simd::exp2_nonpositive(simd::sub(simd::load(scores + j), shift));
    simd::store(scores + j, e);
    sum = simd::add(sum, e);
  }
  *total = simd::sum(sum);
}

// sums[row][dims] += weight * value over keys [first, last), for kRows rows and kVectors vectors of dims.
template <bool kHalf, int kRows, int kVectors>
inline void weigh_values(const float* weights, const void* const* value, int first, int last, int dim, float* sums,
                         int value_stride) {
  F total[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) total[r][v] = simd::load(sums + r * value_stride + dim + v * kWidth);
  }
  for (int j = first; j < last; ++j) {
    F weight[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) weight[r] = simd::set1(weights[r * kChunk + j]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const F x = load_cached<kHalf>(value[j], dim + v * kWidth);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) total[r][v] = simd::fma(weight[r], x, total[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) simd::store(sums + r * value_stride + dim + v * kWidth, total[r][v]);
  }
}

// All dims of kRows rows over keys [first, last).
template <bool kHalf, int kRows, int kVectors>
inline void weigh_keys(const ChunkTask& task, const void* const* value, int row, int first, int last) {
  if (first >= last) return;
  const float* weights = task.scores + static_cast<ptrdiff_t>(row) * kChunk;
  float* sums = task.sums + static_cast<ptrdiff_t>(row) * task.value_stride;
  int dim = 0;
  for (; dim + kVectors * kWidth <= task.value_stride; dim += kVectors * kWidth) {
    weigh_values<kHalf, kRows, kVectors>(weights, value, first, last, dim, sums, task.value_stride);
  }
  for (; dim < task.value_stride; dim += kWidth) {
    weigh_values<kHalf, kRows, 1>(weights, value, first, last, dim, sums, task.value_stride);
  }
}

// kRows rows together over the keys that all of them see, each alone over what only it sees before and after.
template <bool kHalf, int kRows, int kVectors>
void weigh_rows(const ChunkTask& task, const void* const* value, int row) {
  int first = task.first[row], last = task.last[row];
  for (int r = row + 1; r < row + kRows; ++r) {
    if (task.first[r] > first) first = task.first[r];
    if (task.last[r] < last) last = task.last[r];
  }
  for (int r = row; r < row + kRows; ++r) {
    float* sums = task.sums + static_cast<ptrdiff_t>(r) * task.value_stride;
    for (int d = 0; d < task.value_stride; d += kWidth) simd::store(sums + d, simd::zero());
    const int until = first >= last ? task.last[r] : first;
    weigh_keys<kHalf, 1, 4>(task, value, r, task.first[r], until);
  }
  if (first >= last) return;
  weigh_keys<kHalf, kRows, kVectors>(task, value, row, first, last);
  for (int r = row; r < row + kRows; ++r) weigh_keys<kHalf, 1, 4>(task, value, r, last, task.last[r]);
}

template <bool kHalf>
void weigh(const ChunkTask& task, const void* const* value) {
  constexpr int kMost = kWidth == 16 ? 6 : 4;
  for (int r = 0; r < task.rows;) {
    const int left = task.rows - r;
    if (left >= kMost && left != kMost + 1) {
      weigh_rows<kHalf, kMost, kWidth == 16 ? 4 : 2>(task, value, r);
      r += kMost;
    } else if (left >= 4) {
      weigh_rows<kHalf, 4, kWidth == 16 ? 4 : 2>(task, value, r);
      r += 4;
    } else if (left == 3) {
      weigh_rows<kHalf, 3, kWidth == 4 ? 2 : 4>(task, value, r);
      r += 3;
    } else if (left == 2) {
      weigh_rows<kHalf, 2, 4>(task, value, r);
      r += 2;
    } else {
      weigh_rows<kHalf, 1, 8>(task, value, r);
      r += 1;
    }
  }
}

template <bool kHalf>
void attend(const ChunkTask& task) {
  int begin = kChunk, end = 0;
  for (int r = 0; r < task.rows; ++r) {
    if (task.first[r] >= task.last[r]) continue;
    if (task.first[r] < begin) begin = task.first[r];
    if (task.last[r] > end) end = task.last[r];
  }
  const bool many = task.rows >= kManyRows;
  if (many) {
    score_many<kHalf>(task, begin, end);
  } else {
    score_rows<kHalf>(task, begin, end);
  }
  for (int r = 0; r < task.rows; ++r) {
    if (task.first[r] >= task.last[r]) continue;
    softmax_row(task.scores + static_cast<ptrdiff_t>(r) * kChunk, task.first[r], task.last[r], task.softcap,
                task.maximum + r, task.total + r);
  }
  if (!many || !kHalf || !kWidensValues) return weigh<kHalf>(task, task.value);
  const void* widened[kChunk];
  for (int j = begin; j < end; ++j) {
    float* wide = task.wide_values + static_cast<ptrdiff_t>(j) * task.value_stride;
    for (int d = 0; d < task.value_stride; d += kWidth) simd::store(wide + d, load_cached<kHalf>(task.value[j], d));
    widened[j] = wide;
  }
  weigh<false>(task, widened);
}

void attend_chunk(const ChunkTask& task) {
  if (task.half) {
    attend<true>(task);
  } else {
    attend<false>(task);
  }
}

inline float exp2_scalar(float x) {
  Padded lanes(simd::exp2_nonpositive(simd::set1(x)));
  return lanes.lane[0];
}

void merge(float* maximum, float* total, float* sums, float more_maximum, float more_total, const float* more_sums,
           int value_stride) {
  const bool keep = more_maximum <= *maximum;
  const float old_factor = keep ? 1.0f : exp2_scalar(*maximum - more_maximum);
  const float new_factor = keep ? exp2_scalar(more_maximum - *maximum) : 1.0f;
  if (!keep) *maximum = more_maximum;
  *total = *total * old_factor + more_total * new_factor;
  const F old_vector = simd::set1(old_factor), new_vector = simd::set1(new_factor);
  for (int d = 0; d < value_stride; d += kWidth) {
    const F scaled = simd::mul(simd::load(sums + d), old_vector);
    simd::store(sums + d, simd::fma(simd::load(more_sums + d), new_vector, scaled));
  }
}

void finish(float maximum, float total, const float* sums, const float* sink, float* out, int value_dim) {
  float factor = 1.0f;
  if (sink) {
    const float score = *sink * kInverseLn2;
    const bool keep = score <= maximum;
    factor = keep ? 1.0f : exp2_scalar(maximum - score);
    total = total * factor + (keep ? exp2_scalar(score - maximum) : 1.0f);
  }
  scale_row(sums, nullptr, factor / total, out, static_cast<size_t>(value_dim));
}

}  // namespace
}  // namespace ortolan

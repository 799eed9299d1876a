// Attention of a few query rows to one chunk of keys, and the merging of chunks, over a path's vectors.
// Included after one vector_*.h, path_math.h and path_elementwise.h.
//
// What a row computes is independent of the rows beside it: a score is a sum over the head's dims in one fixed
// order, a weighted value a sum over the chunk's keys in their order, and masked keys take no part.
#pragma once

#include "kernels.h"

namespace ortolan {
namespace {

constexpr int kKeysAtOnce = 8;

// A few query rows wait for memory, many for arithmetic: only the few ask for rows ahead.
constexpr int kRowsThatPrefetch = 8;

// Asks for the cache lines of rows [start, end) of keys or values.
inline void prefetch_rows(const float* const* row, int start, int end, int stride) {
  for (int j = start; j < end; ++j) {
    for (int d = 0; d < stride; d += 16) __builtin_prefetch(row[j] + d);
  }
}

// Scores of the keys [start, start + 8) against one query; keys past the last visible one repeat it.
inline void score_keys(const float* query, const float* const* key, int head_stride, float* scores) {
  F total[kKeysAtOnce];
#pragma GCC unroll 8
  for (int k = 0; k < kKeysAtOnce; ++k) total[k] = simd::zero();
  for (int d = 0; d < head_stride; d += kWidth) {
    const F q = simd::load(query + d);
#pragma GCC unroll 8
    for (int k = 0; k < kKeysAtOnce; ++k) total[k] = simd::fma(q, simd::load(key[k] + d), total[k]);
  }
  simd::sum8(total, scores);
}

// Turns a row's scores into exp(score - maximum), zero outside [first, last). Whole vectors from the chunk's start.
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
    const F e = simd::exp_nonpositive(simd::sub(simd::load(scores + j), shift));
    simd::store(scores + j, e);
    sum = simd::add(sum, e);
  }
  *total = simd::sum(sum);
}

// sums[row][dims] = sum over keys [first, last) of weight * value for kRows rows and kVectors vectors of dims.
template <int kRows, int kVectors>
inline void weigh_values(const float* weights, const float* const* value, int first, int last, int dim, float* sums,
                         int value_stride) {
  F total[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) total[r][v] = simd::zero();
  }
  for (int j = first; j < last; ++j) {
    const float* row = value[j] + dim;
    F weight[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) weight[r] = simd::set1(weights[r * kChunk + j]);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const F x = simd::load(row + v * kWidth);
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

// All dims of kRows rows that see the same keys.
template <int kRows, int kVectors>
inline void weigh_rows(const ChunkTask& task, int row) {
  const float* weights = task.scores + static_cast<ptrdiff_t>(row) * kChunk;
  float* sums = task.sums + static_cast<ptrdiff_t>(row) * task.value_stride;
  const int first = task.first[row], last = task.last[row];
  int dim = 0;
  for (; dim + kVectors * kWidth <= task.value_stride; dim += kVectors * kWidth) {
    weigh_values<kRows, kVectors>(weights, task.value, first, last, dim, sums, task.value_stride);
  }
  for (; dim < task.value_stride; dim += kWidth) {
    weigh_values<kRows, 1>(weights, task.value, first, last, dim, sums, task.value_stride);
  }
}

inline bool same_keys(const ChunkTask& task, int row, int count) {
  if (row + count > task.rows) return false;
  for (int r = row + 1; r < row + count; ++r) {
    if (task.first[r] != task.first[row] || task.last[r] != task.last[row]) return false;
  }
  return true;
}

void attend_chunk(const ChunkTask& task) {
  int begin = kChunk, end = 0;
  for (int r = 0; r < task.rows; ++r) {
    if (task.first[r] >= task.last[r]) continue;
    if (task.first[r] < begin) begin = task.first[r];
    if (task.last[r] > end) end = task.last[r];
  }
  for (int j = begin / kKeysAtOnce * kKeysAtOnce; j < end; j += kKeysAtOnce) {
    if (task.rows <= kRowsThatPrefetch) {
      // The keys of the next round, and the values that follow once all scores are known.
      const int next = j + kKeysAtOnce;
      prefetch_rows(task.key, next < end ? next : end, next + kKeysAtOnce < end ? next + kKeysAtOnce : end,
                    task.head_stride);
      prefetch_rows(task.value, j < begin ? begin : j, next < end ? next : end, task.value_stride);
    }
    const float* key[kKeysAtOnce];
    for (int k = 0; k < kKeysAtOnce; ++k) {
      const int index = j + k < begin ? begin : j + k < end ? j + k : end - 1;
      key[k] = task.key[index];
    }
    for (int r = 0; r < task.rows; ++r) {
      if (task.last[r] <= j || task.first[r] >= j + kKeysAtOnce) continue;
      score_keys(task.queries + static_cast<ptrdiff_t>(r) * task.head_stride, key, task.head_stride,
                 task.scores + static_cast<ptrdiff_t>(r) * kChunk + j);
    }
  }
  for (int r = 0; r < task.rows; ++r) {
    if (task.first[r] >= task.last[r]) continue;
    softmax_row(task.scores + static_cast<ptrdiff_t>(r) * kChunk, task.first[r], task.last[r], task.softcap,
                task.maximum + r, task.total + r);
  }
  for (int r = 0; r < task.rows;) {
    if (same_keys(task, r, 4)) {
      weigh_rows<4, 2>(task, r);
      r += 4;
    } else if (same_keys(task, r, 3)) {
      weigh_rows<3, 4>(task, r);
      r += 3;
    } else if (same_keys(task, r, 2)) {
      weigh_rows<2, 4>(task, r);
      r += 2;
    } else {
      weigh_rows<1, 8>(task, r);
      r += 1;
    }
  }
}

inline float exp_scalar(float x) {
  Padded lanes(simd::exp_nonpositive(simd::set1(x)));
  return lanes.lane[0];
}

void merge(float* maximum, float* total, float* sums, float more_maximum, float more_total, const float* more_sums,
           int value_stride) {
  const bool keep = more_maximum <= *maximum;
  const float old_factor = keep ? 1.0f : exp_scalar(*maximum - more_maximum);
  const float new_factor = keep ? exp_scalar(more_maximum - *maximum) : 1.0f;
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
    const bool keep = *sink <= maximum;
    factor = keep ? 1.0f : exp_scalar(maximum - *sink);
    total = total * factor + (keep ? exp_scalar(*sink - maximum) : 1.0f);
  }
  scale_row(sums, nullptr, factor / total, out, static_cast<size_t>(value_dim));
}

}  // namespace
}  // namespace ortolan

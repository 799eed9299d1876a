// Passes over a row of scores: maxima of blocks, candidates, sums of exponentials, over a path's vectors.
// Included after one vector_*.h and path_math.h.
#pragma once

#include "kernels.h"

namespace ortolan {
namespace {

using simd::F;
using simd::kWidth;

constexpr float kInfinity = __builtin_inff();

// The next kWidth values of `count`, `fill` past their end.
inline F load_part(const float* x, int64_t count, float fill) {
  if (count >= kWidth) return simd::load(x);
  alignas(64) float lane[kWidth];
  for (int i = 0; i < kWidth; ++i) lane[i] = i < count ? x[i] : fill;
  return simd::load(lane);
}

inline void store_part(float* out, int64_t count, F x) {
  if (count >= kWidth) return simd::store(out, x);
  alignas(64) float lane[kWidth];
  simd::store(lane, x);
  for (int64_t i = 0; i < count; ++i) out[i] = lane[i];
}

// The bits of kWidth tokens from `first` on; kWidth divides 32.
inline uint32_t bits_at(const uint32_t* words, int64_t first) { return words[first / 32] >> (first % 32); }

template <bool kMasked, bool kCopied>
bool scan_blocks(const float* logits, const uint32_t* mask, float* scores, float* peaks, int64_t count) {
  const F infinity = simd::set1(kInfinity), lowest = simd::set1(-kInfinity), one = simd::set1(1.0f);
  F wrong = simd::zero();
  for (int64_t begin = 0; begin < count; begin += kScoreBlock) {
    const int64_t end = begin + kScoreBlock < count ? begin + kScoreBlock : count;
    F peak = lowest;
    for (int64_t i = begin; i < end; i += kWidth) {
      F x = load_part(logits + i, end - i, -kInfinity);
      // Not less than infinity are NaN and infinity itself.
      wrong = simd::max(wrong, simd::if_less(x, infinity, simd::zero(), one));
      if (kMasked) x = simd::if_bits(bits_at(mask, i), x, lowest);
      if (kCopied) store_part(scores + i, end - i, x);
      peak = simd::max(peak, x);
    }
    peaks[begin / kScoreBlock] = simd::maximum(peak);
  }
  return simd::maximum(wrong) == 0.0f;
}

bool scan_logits(const float* logits, const uint32_t* mask, float* scores, float* peaks, int64_t count) {
  if (mask) return scan_blocks<true, true>(logits, mask, scores, peaks, count);
  if (scores) return scan_blocks<false, true>(logits, mask, scores, peaks, count);
  return scan_blocks<false, false>(logits, mask, scores, peaks, count);
}

float peak_of(const float* x, int count) {
  F peak = simd::set1(-kInfinity);
  for (int i = 0; i < count; i += kWidth) peak = simd::max(peak, load_part(x + i, count - i, -kInfinity));
  return simd::maximum(peak);
}

int gather_at_least(const float* x, int count, float limit, int32_t first, float* values, int32_t* ids) {
  const F bound = simd::set1(limit);
  int found = 0;
  for (int i = 0; i < count; i += kWidth) {
    uint32_t bits = simd::at_least(load_part(x + i, count - i, -kInfinity), bound);
    if (4 * __builtin_popcount(bits) > kWidth) {
      // Many: a step for each lane costs less than guessing wrong where the next one is.
      const int end = count - i < kWidth ? count : i + kWidth;
      for (int place = i; place < end; ++place) {
        values[found] = x[place];
        ids[found] = first + place;
        found += x[place] >= limit;
      }
      continue;
    }
    for (; bits; bits &= bits - 1) {
      const int place = i + __builtin_ctz(bits);
      values[found] = x[place];
      ids[found++] = first + place;
    }
  }
  return found;
}

int count_above(const float* x, int count, float limit) {
  // Above a limit is at least the next float; one that is the largest or infinite has nothing above it.
  int found = 0;
  const F bound = simd::set1(limit);
  for (int i = 0; i < count; i += kWidth) {
    const F part = load_part(x + i, count - i, -kInfinity);
    found += __builtin_popcount(simd::above(part, bound));
  }
  return found;
}

float exp_sum(const float* x, int count, float peak, float scale, float* out) {
  const F top = simd::set1(peak), factor = simd::set1(scale);
  F total[4] = {simd::zero(), simd::zero(), simd::zero(), simd::zero()};
  int lane = 0;
  for (int i = 0; i < count; i += kWidth, lane = (lane + 1) % 4) {
    const F part = load_part(x + i, count - i, -kInfinity);
    const F weight = simd::exp_nonpositive(simd::mul(simd::sub(part, top), factor));
    if (out) store_part(out + i, count - i, weight);
    total[lane] = simd::add(total[lane], weight);
  }
  return simd::sum(simd::add(simd::add(total[0], total[1]), simd::add(total[2], total[3])));
}

float sum_at_least(const float* x, const float* weights, int count, float limit, int* number) {
  const F bound = simd::set1(limit), one = simd::set1(1.0f);
  F total = simd::zero(), found = simd::zero();
  for (int i = 0; i < count; i += kWidth) {
    const F part = load_part(x + i, count - i, -kInfinity);
    total = simd::add(total, simd::if_less(part, bound, simd::zero(), load_part(weights + i, count - i, 0.0f)));
    found = simd::add(found, simd::if_less(part, bound, simd::zero(), one));
  }
  *number = static_cast<int>(simd::sum(found));
  return simd::sum(total);
}

}  // namespace
}  // namespace ortolan

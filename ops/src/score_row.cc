#include "score_row.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ortolan {
namespace {

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// exp of less than this is 0 in exp_sum.
constexpr float kNothing = -87.33f;
// Of so many blocks one is looked at for an estimate.
constexpr int64_t kSampled = 8;
// Candidates that are few enough to be sorted.
constexpr int64_t kFew = 64;

float sum_of(const float* x, int64_t count) {
  double total[4] = {0.0, 0.0, 0.0, 0.0};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int k = 0; k < 4; ++k) total[k] += x[i + k];
  }
  for (; i < count; ++i) total[0] += x[i];
  return static_cast<float>((total[0] + total[1]) + (total[2] + total[3]));
}

int64_t blocks_of(int64_t count) { return (count + kScoreBlock - 1) / kScoreBlock; }

}  // namespace

size_t ScoreRow::room(int64_t vocabulary) {
  const size_t blocks = static_cast<size_t>(blocks_of(vocabulary));
  const size_t row = blocks * kScoreBlock;
  return 5 * Scratch::room(row) + 3 * Scratch::room(blocks);
}

ScoreRow::ScoreRow(const Kernels& kernels, int64_t vocabulary, Scratch& scratch)
    : kernels_(kernels), vocabulary_(vocabulary), blocks_(blocks_of(vocabulary)) {
  const size_t blocks = static_cast<size_t>(blocks_);
  const size_t row = blocks * kScoreBlock;
  own_ = scratch.take(row);
  spare_ = scratch.take(row);
  found_.values = scratch.take(row);
  found_.weights = scratch.take(row);
  found_.ids = reinterpret_cast<int32_t*>(scratch.take(row));
  peaks_ = scratch.take(blocks);
  sums_ = scratch.take(blocks);
  touched_ = reinterpret_cast<uint8_t*>(scratch.take(blocks));
  std::fill(touched_, touched_ + blocks, uint8_t{0});
}

int ScoreRow::size(int64_t block) const {
  return static_cast<int>(std::min<int64_t>(kScoreBlock, vocabulary_ - block * kScoreBlock));
}

void ScoreRow::find_peak() { peak_ = *std::max_element(peaks_, peaks_ + blocks_); }

bool ScoreRow::read(const float* logits) {
  scores_ = logits;
  if (!kernels_.scan_logits(logits, nullptr, nullptr, peaks_, vocabulary_)) return false;
  find_peak();
  return peak_ > -kInfinity;
}

bool ScoreRow::copy(const float* logits, const uint32_t* mask) {
  scores_ = own_;
  if (!kernels_.scan_logits(logits, mask, own_, peaks_, vocabulary_)) return false;
  find_peak();
  return mask || peak_ > -kInfinity;
}

float& ScoreRow::at(int32_t id) {
  touched_[id / kScoreBlock] = 1;
  return own_[id];
}

void ScoreRow::settle() {
  for (int64_t block = 0; block < blocks_; ++block) {
    if (touched_[block]) peaks_[block] = kernels_.peak_of(own_ + block * kScoreBlock, size(block));
  }
  find_peak();
}

int64_t ScoreRow::best() const {
  const int64_t block = std::find(peaks_, peaks_ + blocks_, peak_) - peaks_;
  const float* begin = scores_ + block * kScoreBlock;
  return std::find(begin, begin + size(block), peak_) - scores_;
}

int32_t ScoreRow::rank(float score) const {
  int32_t above = 0;
  for (int64_t block = 0; block < blocks_; ++block) {
    if (peaks_[block] > score) above += kernels_.count_above(scores_ + block * kScoreBlock, size(block), score);
  }
  return 1 + above;
}

double ScoreRow::log_total() const {
  double total = 0.0;
  for (int64_t block = 0; block < blocks_; ++block) {
    if (peaks_[block] - peak_ < kNothing) continue;
    total += kernels_.exp_sum(scores_ + block * kScoreBlock, size(block), peak_, 1.0f, nullptr);
  }
  return std::log(total);
}

float ScoreRow::kth_largest(const float* values, int64_t count, int64_t k) const {
  std::copy(values, values + count, spare_);
  std::nth_element(spare_, spare_ + (k - 1), spare_ + count, [](float a, float b) { return a > b; });
  return spare_[k - 1];
}

// The tokens of all blocks, or of every so many, that are at least `limit`.
void ScoreRow::gather(float limit, int64_t every) {
  found_.count = 0;
  for (int64_t block = 0; block < blocks_; block += every) {
    if (peaks_[block] < limit) continue;
    const int64_t first = block * kScoreBlock;
    found_.count += kernels_.gather_at_least(scores_ + first, size(block), limit, static_cast<int32_t>(first),
                                             found_.values + found_.count, found_.ids + found_.count);
  }
}

const Candidates& ScoreRow::select(int64_t k, float limit) {
  limit = std::max(limit, kLowest);
  // k blocks hold a score that is at least the k-th largest of their maxima, so the k-th largest score is as well.
  const bool few = k > 0 && k <= blocks_;
  gather(few ? std::max(limit, kth_largest(peaks_, blocks_, k)) : limit);
  if (k == 0 || found_.count <= k) return found_;
  const float least = kth_largest(found_.values, found_.count, k);
  int64_t kept = 0;
  for (int64_t i = 0; i < found_.count; ++i) {
    found_.values[kept] = found_.values[i];
    found_.ids[kept] = found_.ids[i];
    kept += found_.values[i] >= least;
  }
  found_.count = kept;
  return found_;
}

double ScoreRow::weigh(float scale) {
  double total = 0.0;
  for (int64_t begin = 0; begin < found_.count; begin += kScoreBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kScoreBlock, found_.count - begin));
    total += kernels_.exp_sum(found_.values + begin, count, peak_, scale, found_.weights + begin);
  }
  return total;
}

double ScoreRow::sum_from(float limit, int64_t* number) const {
  double total = 0.0;
  *number = 0;
  for (int64_t begin = 0; begin < found_.count; begin += kScoreBlock) {
    const int count = static_cast<int>(std::min<int64_t>(kScoreBlock, found_.count - begin));
    int some = 0;
    total += kernels_.sum_at_least(found_.values + begin, found_.weights + begin, count, limit, &some);
    *number += some;
  }
  return total;
}

void ScoreRow::keep_mass(double mass) {
  // Scores from `low` on reach the mass, scores from `high` on do not: halve between them until few are left.
  float low = *std::min_element(found_.values, found_.values + found_.count);
  float high = std::nextafter(peak_, kInfinity);
  double above = 0.0;
  int64_t from_low = found_.count, from_high = 0;
  while (from_low - from_high > kFew) {
    const float middle = 0.5f * low + 0.5f * high;
    if (!(middle > low && middle < high)) break;
    int64_t number = 0;
    const double reached = sum_from(middle, &number);
    if (reached >= mass) {
      low = middle;
      from_low = number;
    } else {
      high = middle;
      from_high = number;
      above = reached;
    }
  }
  int32_t* order = reinterpret_cast<int32_t*>(spare_);
  int32_t* end = order;
  for (int64_t i = 0; i < found_.count; ++i) {
    if (found_.values[i] >= low && found_.values[i] < high) *end++ = static_cast<int32_t>(i);
  }
  const float* values = found_.values;
  std::sort(order, end, [values](int32_t a, int32_t b) {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  });
  for (; order != end; ++order) {
    if (above >= mass && from_high + (order - reinterpret_cast<int32_t*>(spare_)) > 0) break;
    above += found_.weights[*order];
  }
  for (; order != end; ++order) found_.weights[*order] = -1.0f;  // beyond the mass
  int64_t kept = 0;
  for (int64_t i = 0; i < found_.count; ++i) {
    const float value = found_.values[i], weight = found_.weights[i];
    found_.values[kept] = value;
    found_.weights[kept] = weight;
    found_.ids[kept] = found_.ids[i];
    kept += (value >= low) & (weight >= 0.0f);
  }
  found_.count = kept;
}

int64_t ScoreRow::draw(double number) const {
  // Sums of pieces first, so that only one piece has to be walked through.
  double total = 0.0;
  int64_t pieces = 0;
  for (int64_t begin = 0; begin < found_.count; begin += kScoreBlock) {
    const int64_t end = std::min(begin + kScoreBlock, found_.count);
    sums_[pieces] = sum_of(found_.weights + begin, end - begin);
    total += sums_[pieces++];
  }
  const double target = std::min(number * total, std::nextafter(total, 0.0));
  double passed = 0.0;
  int64_t piece = 0;
  for (; piece + 1 < pieces && passed + sums_[piece] <= target; ++piece) passed += sums_[piece];
  const int64_t end = std::min((piece + 1) * kScoreBlock, found_.count);
  int64_t chosen = piece * kScoreBlock;
  for (int64_t i = chosen; i < end; ++i) {
    if (found_.weights[i] <= 0.0f) continue;
    chosen = i;
    passed += found_.weights[i];
    if (passed > target) break;
  }
  return found_.ids[chosen];
}

double ScoreRow::sum(float scale) {
  double total = 0.0;
  for (int64_t block = 0; block < blocks_; ++block) {
    const bool empty = (peaks_[block] - peak_) * scale < kNothing;
    sums_[block] =
        empty ? 0.0f : kernels_.exp_sum(scores_ + block * kScoreBlock, size(block), peak_, scale, nullptr);
    total += sums_[block];
  }
  return total;
}

float ScoreRow::estimate(double share, float least, float scale) {
  gather(least, kSampled);
  if (found_.count == 0) return least;
  double total = 0.0;
  for (int64_t block = 0; block < blocks_; block += kSampled) total += sums_[block];
  weigh(scale);
  keep_mass(share * total);
  return *std::min_element(found_.values, found_.values + found_.count);
}

int64_t ScoreRow::draw_of_all(double number, float scale) const {
  double total = 0.0;
  for (int64_t block = 0; block < blocks_; ++block) total += sums_[block];
  const double target = std::min(number * total, std::nextafter(total, 0.0));
  double passed = 0.0;
  int64_t block = 0, last = 0;
  for (; block < blocks_; ++block) {
    if (sums_[block] > 0.0f) last = block;
    if (passed + sums_[block] > target) break;
    passed += sums_[block];
  }
  if (block == blocks_) block = last;
  float weights[kScoreBlock];
  const int count = size(block);
  kernels_.exp_sum(scores_ + block * kScoreBlock, count, peak_, scale, weights);
  // The block's sum was rounded otherwise than this one: past its end the last token that can be drawn is meant.
  int chosen = 0;
  for (int i = 0; i < count; ++i) {
    if (weights[i] <= 0.0f) continue;
    chosen = i;
    passed += weights[i];
    if (passed > target) break;
  }
  return block * kScoreBlock + chosen;
}

}  // namespace ortolan

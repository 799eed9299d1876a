// A row of scores with the maxima of its blocks, and what is found in it without sorting it.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "scratch.h"

namespace ortolan {

// Some tokens of a row, ascending: `values` are their scores, `weights` what they are drawn by.
struct Candidates {
  float* values = nullptr;
  float* weights = nullptr;
  int32_t* ids = nullptr;
  int64_t count = 0;
};

class ScoreRow {
 public:
  // Floats of scratch that one row needs at most.
  static size_t room(int64_t vocabulary);

  ScoreRow(const Kernels& kernels, int64_t vocabulary, Scratch& scratch);

  // Reads logits; false where one is NaN or infinity, or all are -infinity.
  bool read(const float* logits);
  // Reads them into a copy that may be changed, only those that a mask allows if there is one (see scan_logits).
  bool copy(const float* logits, const uint32_t* mask);
  // The copy's score of a token, to be changed; `settle` must be called before anything is asked.
  float& at(int32_t id);
  void settle();

  // -infinity where no token is left.
  float peak() const { return peak_; }
  // The first token with the largest score.
  int64_t best() const;
  // 1 + tokens with a larger score than `score`.
  int32_t rank(float score) const;
  // ln of the sum of exp(score - peak()).
  double log_total() const;
  // Tokens with at least the k-th largest score and at least `limit`; with k = 0 those that are at least `limit`.
  const Candidates& select(int64_t k, float limit);
  // Of the selected, weighted ones those that are likeliest and reach `mass` together, ties in the order of ids.
  void keep_mass(double mass);
  // Weights of the selected: exp((score - peak()) * scale); returns their sum.
  double weigh(float scale);
  // The selected token that `number` in [0, 1) falls on.
  int64_t draw(double number) const;
  // Sum of exp((score - peak()) * scale) of all tokens.
  double sum(float scale);
  // After `sum`: a score above which about `share` of it lies, judged by some of the blocks, if that is not less than
  // `least`. Selects and weighs some tokens on the way.
  float estimate(double share, float least, float scale);
  // The token of all that `number` in [0, 1) falls on, after `sum` of the same scale.
  int64_t draw_of_all(double number, float scale) const;

 private:
  int size(int64_t block) const;
  float kth_largest(const float* values, int64_t count, int64_t k) const;
  void gather(float limit, int64_t every = 1);
  void find_peak();
  double sum_from(float limit, int64_t* number) const;

  const Kernels& kernels_;
  int64_t vocabulary_;
  int64_t blocks_;
  const float* scores_ = nullptr;
  float* own_;
  float* peaks_;
  float* sums_;
  float* spare_;
  uint8_t* touched_;
  float peak_ = 0.0f;
  Candidates found_;
};

}  // namespace ortolan

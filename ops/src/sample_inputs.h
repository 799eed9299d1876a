// What Sample is given and where its results go: checked inputs and outputs of one call, row by row.
#pragma once

#include "custom_op.h"

namespace ortolan {

// Columns of settings and numbers, and states of a row; ops/sample_columns.py has the same.
enum Setting { kTemperature, kTopP, kMinP, kRepetition, kPresence, kFrequency, kSettings };
enum Number { kSeed, kPosition, kTopK, kLogprobs, kForced, kMask, kNumbers };
enum RowStatus : int32_t { kSound = 0, kNotFinite = 1, kNothingAllowed = 2 };

// Pairs of one row: token ids, and what is said of each.
template <typename Value>
struct TokenList {
  const int32_t* ids;
  const Value* values;
  int64_t count;
};

class SampleInputs {
 public:
  explicit SampleInputs(const Call& call);

  int64_t rows() const { return rows_; }
  int64_t vocabulary() const { return vocabulary_; }
  // The most log-probabilities that a row asks for beside its token's.
  int64_t most() const { return most_; }
  const float* logits(int64_t row) const { return logits_ + row * vocabulary_; }
  float setting(int64_t row, Setting column) const { return settings_[row * kSettings + column]; }
  int64_t number(int64_t row, Number column) const { return numbers_[row * kNumbers + column]; }
  TokenList<int32_t> tokens(int64_t row) const;
  TokenList<float> bias(int64_t row) const;
  // Null where every token may come.
  const uint32_t* mask(int64_t row) const;

 private:
  void check_lists(const Call& call, const char* name, const Tensor& start, const Tensor& ids,
                   const Tensor& values) const;
  // Also finds `most`.
  void check_numbers(const Call& call, int64_t masks);

  int64_t rows_;
  int64_t vocabulary_;
  int64_t words_;
  int64_t most_ = 0;
  const float* logits_;
  const float* settings_;
  const int64_t* numbers_;
  const int32_t* token_start_;
  const int32_t* token_ids_;
  const int32_t* token_counts_;
  const int32_t* bias_start_;
  const int32_t* bias_ids_;
  const float* bias_values_;
  const uint32_t* masks_;
};

}  // namespace ortolan

#include "sample_inputs.h"

#include <algorithm>

namespace ortolan {

SampleInputs::SampleInputs(const Call& call) {
  const Tensor logits = call.input(0, "logits"), settings = call.input(1, "settings");
  const Tensor numbers = call.input(2, "numbers"), masks = call.input(9, "masks");
  if (logits.shape.size() != 2 || logits.shape[1] < 1) {
    call.refuse("input logits has shape " + shape_text(logits.shape) + ", not [rows, vocabulary].");
  }
  vocabulary_ = logits.shape[1];
  words_ = (vocabulary_ + 31) / 32;
  if (settings.shape.size() != 2 || settings.shape[1] != kSettings || settings.shape[0] > logits.shape[0]) {
    call.refuse("input settings has shape " + shape_text(settings.shape) + ", not [S, " +
                std::to_string(kSettings) + "] for up to " + std::to_string(logits.shape[0]) + " rows of logits.");
  }
  rows_ = settings.shape[0];
  if (numbers.shape != Shape{rows_, kNumbers}) {
    call.refuse("input numbers has shape " + shape_text(numbers.shape) + ", not " +
                shape_text({rows_, kNumbers}) + ".");
  }
  if (masks.shape.size() != 2 || masks.shape[1] != words_) {
    call.refuse("input masks has shape " + shape_text(masks.shape) + ", not [M, " + std::to_string(words_) + "].");
  }
  logits_ = logits.as<float>();
  settings_ = settings.as<float>();
  numbers_ = numbers.as<int64_t>();
  masks_ = masks.as<uint32_t>();
  const Tensor token_start = call.input(3, "token_start"), token_ids = call.input(4, "token_ids");
  const Tensor token_counts = call.input(5, "token_counts"), bias_start = call.input(6, "bias_start");
  const Tensor bias_ids = call.input(7, "bias_ids"), bias_values = call.input(8, "bias_values");
  check_lists(call, "token", token_start, token_ids, token_counts);
  check_lists(call, "bias", bias_start, bias_ids, bias_values);
  token_start_ = token_start.as<int32_t>();
  token_ids_ = token_ids.as<int32_t>();
  token_counts_ = token_counts.as<int32_t>();
  bias_start_ = bias_start.as<int32_t>();
  bias_ids_ = bias_ids.as<int32_t>();
  bias_values_ = bias_values.as<float>();
  check_numbers(call, masks.shape[0]);
}

void SampleInputs::check_lists(const Call& call, const char* name, const Tensor& start, const Tensor& ids,
                               const Tensor& values) const {
  const std::string prefix = std::string("input ") + name;
  if (start.count != rows_ + 1) {
    call.refuse(prefix + "_start has shape " + shape_text(start.shape) + ", not [" + std::to_string(rows_ + 1) +
                "].");
  }
  if (ids.count != values.count) {
    call.refuse(prefix + "_ids has " + std::to_string(ids.count) + " entries, but there are " +
                std::to_string(values.count) + " values for them.");
  }
  const int32_t* starts = start.as<int32_t>();
  if (starts[0] != 0 || starts[rows_] != ids.count || !std::is_sorted(starts, starts + rows_ + 1)) {
    call.refuse(prefix + "_start does not rise from 0 to " + std::to_string(ids.count) + ".");
  }
  for (const int32_t* id = ids.as<int32_t>(); id != ids.as<int32_t>() + ids.count; ++id) {
    if (*id < 0 || *id >= vocabulary_) {
      call.refuse(prefix + "_ids holds " + std::to_string(*id) + ", but ids go from 0 to " +
                  std::to_string(vocabulary_ - 1) + ".");
    }
  }
}

void SampleInputs::check_numbers(const Call& call, int64_t masks) {
  for (int64_t row = 0; row < rows_; ++row) {
    if (number(row, kForced) >= vocabulary_) {
      call.refuse("row " + std::to_string(row) + " forces token " + std::to_string(number(row, kForced)) +
                  ", but ids go from 0 to " + std::to_string(vocabulary_ - 1) + ".");
    }
    if (number(row, kMask) >= masks) {
      call.refuse("row " + std::to_string(row) + " names mask " + std::to_string(number(row, kMask)) + " of " +
                  std::to_string(masks) + ".");
    }
    most_ = std::max(most_, number(row, kLogprobs));
  }
}

TokenList<int32_t> SampleInputs::tokens(int64_t row) const {
  const int32_t begin = token_start_[row];
  return {token_ids_ + begin, token_counts_ + begin, token_start_[row + 1] - begin};
}

TokenList<float> SampleInputs::bias(int64_t row) const {
  const int32_t begin = bias_start_[row];
  return {bias_ids_ + begin, bias_values_ + begin, bias_start_[row + 1] - begin};
}

const uint32_t* SampleInputs::mask(int64_t row) const {
  const int64_t mask = number(row, kMask);
  return mask < 0 ? nullptr : masks_ + mask * words_;
}

}  // namespace ortolan

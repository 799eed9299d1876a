// Which experts each row goes to, with which weights, and the rows of each expert side by side.
#pragma once

#include <cstdint>
#include <vector>

#include "ort_api.h"

namespace ortolan {

// A row and one of its experts is a pair. Pairs lie sorted by expert, those of one expert by row.
struct RoutedRows {
  std::vector<int32_t> row;        // of each pair
  std::vector<int32_t> place;      // [rows, top_k]: the pairs of a row, the best expert first
  std::vector<float> weight;       // [rows, top_k]: of its experts, in that order
  std::vector<int64_t> first;      // [experts + 1]: the first pair of each expert
  int64_t pairs() const { return static_cast<int64_t>(row.size()); }
};

class Routing {
 public:
  explicit Routing(const NodeInfo& node);

  int64_t experts() const { return experts_; }
  int64_t top_k() const { return top_k_; }
  bool normalise() const { return normalise_; }
  float scale() const { return scale_; }
  // Routes rows by their logits [rows, experts]. Of equal logits the expert of the lower number comes first.
  RoutedRows route(const Call& call, const float* logits, int64_t rows) const;

 private:
  // The experts of one row and their weights.
  void choose(const float* logits, int32_t* experts, float* weights) const;

  int64_t experts_;
  int64_t top_k_;
  bool normalise_;
  float scale_;
};

}  // namespace ortolan

#include "expert_routing.h"

#include <algorithm>
#include <cmath>

namespace ortolan {
namespace {

// Logits that one task looks at.
constexpr int64_t kTaskSize = 4096;
// An index of a pair has 32 bits.
constexpr int64_t kMostExperts = 1 << 16;

}  // namespace

Routing::Routing(const NodeInfo& node)
    : experts_(node.integer("experts")),
      top_k_(node.integer("top_k")),
      normalise_(node.integer("normalise", 0) == 1),
      scale_(node.real("scale", 1.0f)) {
  if (experts_ < 1 || experts_ > kMostExperts)
    node.refuse("experts", "is " + std::to_string(experts_) + ". Give 1 to " + std::to_string(kMostExperts) + ".");
  if (top_k_ < 1 || top_k_ > experts_) {
    node.refuse("top_k", "is " + std::to_string(top_k_) + ". Give 1 to " + std::to_string(experts_) +
                             ", the number of experts.");
  }
  const int64_t normalise = node.integer("normalise", 0);
  if (normalise != 0 && normalise != 1)
    node.refuse("normalise", "is " + std::to_string(normalise) + ". Give 0 or 1.");
}

void Routing::choose(const float* logits, int32_t* experts, float* weights) const {
  for (int64_t k = 0; k < top_k_; ++k) {
    int64_t best = -1;
    for (int64_t e = 0; e < experts_; ++e) {
      const bool better = best < 0 || logits[e] > logits[best];
      if (better && std::find(experts, experts + k, static_cast<int32_t>(e)) == experts + k) best = e;
    }
    experts[k] = static_cast<int32_t>(best);
  }
  const double top = logits[experts[0]];
  double total = 0.0;
  if (normalise_) {
    for (int64_t k = 0; k < top_k_; ++k) total += std::exp(logits[experts[k]] - top);
  } else {
    for (int64_t e = 0; e < experts_; ++e) total += std::exp(logits[e] - top);
  }
  for (int64_t k = 0; k < top_k_; ++k)
    weights[k] = static_cast<float>(std::exp(logits[experts[k]] - top) / total * scale_);
}

RoutedRows Routing::route(const Call& call, const float* logits, int64_t rows) const {
  RoutedRows routed;
  const auto pairs = static_cast<size_t>(rows * top_k_);
  std::vector<int32_t> experts(pairs);
  routed.weight.resize(pairs);
  const int64_t at_once = std::max<int64_t>(1, kTaskSize / experts_);
  call.parallel_for(static_cast<size_t>((rows + at_once - 1) / at_once), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * at_once;
    for (int64_t row = first; row < std::min(rows, first + at_once); ++row) {
      const int64_t at = row * top_k_;
      choose(logits + row * experts_, experts.data() + at, routed.weight.data() + at);
    }
  });
  routed.first.assign(static_cast<size_t>(experts_) + 1, 0);
  for (const int32_t expert : experts) ++routed.first[static_cast<size_t>(expert) + 1];
  for (size_t e = 0; e < static_cast<size_t>(experts_); ++e) routed.first[e + 1] += routed.first[e];
  std::vector<int64_t> next(routed.first.begin(), routed.first.end() - 1);
  routed.row.resize(pairs);
  routed.place.resize(pairs);
  for (size_t pair = 0; pair < pairs; ++pair) {
    const int64_t place = next[static_cast<size_t>(experts[pair])]++;
    routed.place[pair] = static_cast<int32_t>(place);
    routed.row[static_cast<size_t>(place)] = static_cast<int32_t>(static_cast<int64_t>(pair) / top_k_);
  }
  return routed;
}

}  // namespace ortolan

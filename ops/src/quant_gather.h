// y[i] = row ids[i] of quantised weights: the embedding, from the bytes that a tied head multiplies by.
#pragma once

#include <array>

#include "custom_op.h"
#include "quant_weights.h"

namespace ortolan {

class QuantGather {
 public:
  static constexpr const char* kName = "QuantGather";
  static constexpr std::array<Port, 2> kInputs{{{abi::kUint8}, {abi::kInt64}}};
  static constexpr std::array<Port, 1> kOutputs{{{abi::kFloat}}};
  static constexpr std::array<Alias, 0> kAliases{};

  QuantGather(const NodeInfo& node, const Kernels& kernels) : weights_(node, 0), kernels_(kernels) {}
  void compute(const Call& call) const;

 private:
  QuantWeights weights_;
  const Kernels& kernels_;
};

}  // namespace ortolan

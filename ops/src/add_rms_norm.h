// sum = x + residual; y = sum / sqrt(mean(sum^2) + epsilon) * weight, over the last axis.
#pragma once

#include <array>

#include "custom_op.h"

namespace ortolan {

class AddRMSNorm {
 public:
  static constexpr const char* kName = "AddRMSNorm";
  static constexpr std::array<Port, 3> kInputs{{{abi::kFloat}, {abi::kFloat}, {abi::kFloat}}};
  static constexpr std::array<Port, 2> kOutputs{{{abi::kFloat}, {abi::kFloat}}};
  static constexpr std::array<Alias, 0> kAliases{};

  AddRMSNorm(const NodeInfo& node, const Kernels& kernels);
  void compute(const Call& call) const;

 private:
  const Kernels& kernels_;
  float epsilon_;
};

}  // namespace ortolan

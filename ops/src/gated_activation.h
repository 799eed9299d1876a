// activation(gate) * up, where each row of x holds gate | up.
#pragma once

#include <array>

#include "custom_op.h"

namespace ortolan {

// The activation of a name. Refuses one that there is not.
Activation activation_of(const NodeInfo& node, const std::string& name);

class GatedActivation {
 public:
  static constexpr const char* kName = "GatedActivation";
  static constexpr std::array<Port, 1> kInputs{{{abi::kFloat}}};
  static constexpr std::array<Port, 1> kOutputs{{{abi::kFloat}}};
  static constexpr std::array<Alias, 0> kAliases{};

  GatedActivation(const NodeInfo& node, const Kernels& kernels);
  void compute(const Call& call) const;

 private:
  const Kernels& kernels_;
  Activation kind_;
};

}  // namespace ortolan

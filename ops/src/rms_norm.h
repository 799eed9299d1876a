// RMSNorm and AddRMSNorm over the last axis.
#pragma once

#include <array>

#include "custom_op.h"

namespace ortolan {

class RMSNorm {
 public:
  static constexpr const char* kName = "RMSNorm";
  static constexpr std::array<Port, 2> kInputs{{{abi::kFloat}, {abi::kFloat}}};
  static constexpr std::array<Port, 1> kOutputs{{{abi::kFloat}}};
  static constexpr std::array<Alias, 0> kAliases{};

  RMSNorm(const NodeInfo& node, const Kernels& kernels);
  void compute(const Call& call) const;

 private:
  const Kernels& kernels_;
  float epsilon_;
};

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

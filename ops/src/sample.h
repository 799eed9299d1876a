// One token a row of logits: masks, bias, penalties, temperature, min-p, top-k, top-p, a draw, log-probabilities.
#pragma once

#include <array>

#include "custom_op.h"
#include "score_row.h"

namespace ortolan {

class Sample {
 public:
  static constexpr const char* kName = "Sample";
  static constexpr std::array<Port, 10> kInputs{{{abi::kFloat},
                                                 {abi::kFloat},
                                                 {abi::kInt64},
                                                 {abi::kInt32},
                                                 {abi::kInt32},
                                                 {abi::kInt32},
                                                 {abi::kInt32},
                                                 {abi::kInt32},
                                                 {abi::kFloat},
                                                 {abi::kUint32}}};
  static constexpr std::array<Port, 6> kOutputs{
      {{abi::kInt64}, {abi::kInt32}, {abi::kFloat}, {abi::kInt32}, {abi::kInt32}, {abi::kFloat}}};
  static constexpr std::array<Alias, 0> kAliases{};

  Sample(const NodeInfo&, const Kernels& kernels) : kernels_(kernels) {}
  void compute(const Call& call) const;

 private:
  const Kernels& kernels_;
};

}  // namespace ortolan

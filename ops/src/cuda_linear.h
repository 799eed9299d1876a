// Linear and QuantMatMul on a GPU, and their forms that give logits in float32.
#pragma once

#include <array>
#include <string>

#include "cuda_session.h"

namespace ortolan::cuda {

// activation(x . W^T + bias): by a kernel of the bundle for as many rows as one serves, else by cuBLAS.
template <bool kLogits>
class Linear {
 public:
  static constexpr const char* kName = kLogits ? "Logits" : "Linear";
  static constexpr std::array<Port, 3> kInputs{{{abi::kActivation}, {abi::kActivation}, {abi::kActivation, true}}};
  static constexpr std::array<Port, 1> kOutputs{{{kLogits ? abi::kFloat : abi::kActivation}}};
  static constexpr std::array<Alias, 0> kAliases{};

  Linear(const NodeInfo& node, const Session& session);
  void compute(const Call& call) const;

 private:
  const Session& session_;
  std::string activation_;
};

// The same with W in the layout cuda-planes, which for many rows is first made float16 again.
template <bool kLogits>
class QuantMatMul {
 public:
  static constexpr const char* kName = kLogits ? "QuantLogits" : "QuantMatMul";
  static constexpr std::array<Port, 5> kInputs{{{abi::kActivation},
                                                {abi::kUint8},
                                                {abi::kActivation, true},
                                                {abi::kActivation, true},
                                                {abi::kActivation, true}}};
  static constexpr std::array<Port, 1> kOutputs{{{kLogits ? abi::kFloat : abi::kActivation}}};
  static constexpr std::array<Alias, 0> kAliases{};

  QuantMatMul(const NodeInfo& node, const Session& session);
  void compute(const Call& call) const;

 private:
  const Session& session_;
  std::string activation_;
  std::string form_;
  int64_t rows_;
  int64_t columns_;
  int64_t groups_;
};

class QuantGather {
 public:
  static constexpr const char* kName = "QuantGather";
  static constexpr std::array<Port, 2> kInputs{{{abi::kUint8}, {abi::kInt64}}};
  static constexpr std::array<Port, 1> kOutputs{{{abi::kActivation}}};
  static constexpr std::array<Alias, 0> kAliases{};

  QuantGather(const NodeInfo& node, const Session& session);
  void compute(const Call& call) const;

 private:
  const Session& session_;
  std::string form_;
  int64_t rows_;
  int64_t columns_;
  int64_t groups_;
};

extern template class Linear<false>;
extern template class Linear<true>;
extern template class QuantMatMul<false>;
extern template class QuantMatMul<true>;

}  // namespace ortolan::cuda

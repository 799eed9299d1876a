// Linear and QuantMatMul on a GPU, their forms that give logits in float32, and those with a residual and a norm.
#pragma once

#include <array>
#include <string>

#include "cuda_product.h"

namespace ortolan::cuda {

// The inputs of a product: x, weight, bias, squares; or x, weights, norm, bias, residual, squares. Logits, which no
// norm is put off before, have all but the last.
constexpr std::array<Port, 4> kLinearInputs{
    {{abi::kActivation}, {abi::kActivation}, {abi::kActivation, true}, {abi::kFloat, true}}};
constexpr std::array<Port, 6> kQuantInputs{{{abi::kActivation},
                                            {abi::kUint8},
                                            {abi::kActivation, true},
                                            {abi::kActivation, true},
                                            {abi::kActivation, true},
                                            {abi::kFloat, true}}};

template <size_t kCount, size_t kAll>
constexpr std::array<Port, kCount> first(const std::array<Port, kAll>& ports) {
  std::array<Port, kCount> found{};
  for (size_t i = 0; i < kCount; ++i) found[i] = ports[i];
  return found;
}

// activation(x . W^T + bias), scaled by squares where x was left so.
template <bool kLogits>
class Linear {
 public:
  static constexpr const char* kName = kLogits ? "Logits" : "Linear";
  static constexpr auto kInputs = first<kLogits ? 3 : 4>(kLinearInputs);
  static constexpr std::array<Port, 1> kOutputs{{{kLogits ? abi::kFloat : abi::kActivation}}};
  static constexpr std::array<Alias, 0> kAliases{};

  Linear(const NodeInfo& node, const Session& session);
  void compute(const Call& call) const;

 private:
  std::string activation_;
  DenseWeights weights_;
};

// The same with W in 4 or 8 bits.
template <bool kLogits>
class QuantMatMul {
 public:
  static constexpr const char* kName = kLogits ? "QuantLogits" : "QuantMatMul";
  static constexpr auto kInputs = first<kLogits ? 5 : 6>(kQuantInputs);
  static constexpr std::array<Port, 1> kOutputs{{{kLogits ? abi::kFloat : abi::kActivation}}};
  static constexpr std::array<Alias, 0> kAliases{};

  QuantMatMul(const NodeInfo& node, const Session& session);
  void compute(const Call& call) const;

 private:
  std::string activation_;
  QuantWeights weights_;
};

// sum = x . W^T + bias + residual and its norm; of up to kDeferredRows rows what products behind it scale.
template <typename Weights>
class AddNorm {
 public:
  static constexpr const char* kName = Weights::kAddNorm;
  static constexpr std::array<Port, 6> kInputs{{{abi::kActivation},
                                                {Weights::kType},
                                                {abi::kActivation},
                                                {abi::kActivation},
                                                {abi::kActivation, true},
                                                {abi::kFloat, true}}};
  static constexpr std::array<Port, 3> kOutputs{{{abi::kActivation}, {abi::kActivation}, {abi::kFloat}}};
  static constexpr std::array<Alias, 0> kAliases{};

  AddNorm(const NodeInfo& node, const Session& session);
  void compute(const Call& call) const;

 private:
  const Session& session_;
  Weights weights_;
  float epsilon_;
};

// Rows of quantised weights.
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
  FragmentForm form_;
};

extern template class Linear<false>;
extern template class Linear<true>;
extern template class QuantMatMul<false>;
extern template class QuantMatMul<true>;
extern template class AddNorm<DenseWeights>;
extern template class AddNorm<QuantWeights>;

}  // namespace ortolan::cuda

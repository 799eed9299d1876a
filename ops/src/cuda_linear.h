// Linear and QuantMatMul on a GPU, their forms that give logits in float32, and one with a residual and a norm.
#pragma once

#include <array>
#include <string>

#include "cuda_session.h"

namespace ortolan::cuda {

// The first of an operator's ports.
template <size_t kCount, size_t kAll>
constexpr std::array<Port, kCount> first(const std::array<Port, kAll>& ports) {
  std::array<Port, kCount> found{};
  for (size_t i = 0; i < kCount; ++i) found[i] = ports[i];
  return found;
}

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

// A weight in the layout cuda-fragments (ops/cuda_layout.py), as a node describes it.
struct FragmentForm {
  int64_t rows;
  int64_t columns;
  int64_t bits;
  int64_t group;
  bool minima;

  // Refuses a layout or a form that the GPU kernels do not read.
  explicit FragmentForm(const NodeInfo& node);
  // As kernels' keys name it.
  std::string key() const;
  int64_t step_columns() const;
  int64_t steps() const;
  int64_t block_bytes() const;
  // Refuses weights of another shape than this form has.
  void expect(const Call& call, const Tensor& weights) const;
};

// The same with W in 4 or 8 bits, which for many rows is first made float16 again; scaled by squares, where a norm was
// left to it. Logits have no squares.
template <bool kLogits>
class QuantMatMul {
 public:
  static constexpr const char* kName = kLogits ? "QuantLogits" : "QuantMatMul";
  static constexpr std::array<Port, 6> kPorts{{{abi::kActivation},
                                               {abi::kUint8},
                                               {abi::kActivation, true},
                                               {abi::kActivation, true},
                                               {abi::kActivation, true},
                                               {abi::kFloat, true}}};
  static constexpr auto kInputs = first<kLogits ? 5 : 6>(kPorts);
  static constexpr std::array<Port, 1> kOutputs{{{kLogits ? abi::kFloat : abi::kActivation}}};
  static constexpr std::array<Alias, 0> kAliases{};

  QuantMatMul(const NodeInfo& node, const Session& session);
  void compute(const Call& call) const;

 private:
  const Session& session_;
  std::string activation_;
  FragmentForm form_;
};

// sum = x . W^T + bias + residual, and its norm, or of few rows what products with squares take instead.
class QuantMatMulAddRMSNorm {
 public:
  static constexpr const char* kName = "QuantMatMulAddRMSNorm";
  static constexpr std::array<Port, 6> kInputs{{{abi::kActivation},
                                                {abi::kUint8},
                                                {abi::kActivation},
                                                {abi::kActivation},
                                                {abi::kFloat},
                                                {abi::kActivation, true}}};
  static constexpr std::array<Port, 3> kOutputs{{{abi::kActivation}, {abi::kActivation}, {abi::kFloat}}};
  static constexpr std::array<Alias, 0> kAliases{};

  QuantMatMulAddRMSNorm(const NodeInfo& node, const Session& session);
  void compute(const Call& call) const;

 private:
  const Session& session_;
  FragmentForm form_;
  float epsilon_;
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
  FragmentForm form_;
};

extern template class Linear<false>;
extern template class Linear<true>;
extern template class QuantMatMul<false>;
extern template class QuantMatMul<true>;

}  // namespace ortolan::cuda

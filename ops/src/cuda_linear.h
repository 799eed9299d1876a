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

// The same with W in 4 or 8 bits, which for many rows is first made float16 again.
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
  FragmentForm form_;
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

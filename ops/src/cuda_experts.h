// Experts on a GPU, with both weights of the activations' type or both in integers.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "cuda_linear.h"
#include "cuda_session.h"
#include "expert_routing.h"

namespace ortolan::cuda {

// Rows are routed, put in order and multiplied on the GPU: what is launched follows from shapes alone.
template <bool kQuantised>
class Experts {
  static constexpr abi::ElementType kWeight = kQuantised ? abi::kUint8 : abi::kActivation;

 public:
  static constexpr const char* kName = "Experts";
  static constexpr std::array<Port, 4> kInputs{{{abi::kActivation}, {abi::kFloat}, {kWeight}, {kWeight}}};
  static constexpr std::array<Port, 1> kOutputs{{{abi::kActivation}}};
  static constexpr std::array<Alias, 0> kAliases{};

  Experts(const NodeInfo& node, const Session& session);
  void compute(const Call& call) const;

 private:
  struct Work;

  // Refuses weights of other shapes than the attributes say.
  void expect(const Call& call, const Tensor& weight, const char* name, int64_t rows, int64_t columns,
              const std::optional<FragmentForm>& form) const;
  std::string key(const char* kernel, const std::optional<FragmentForm>& form, const std::string& rest) const;
  void run(const Work& work) const;
  void multiply(const Work& work, const Kernel& kernel, const void* x, const Tensor& w, void* y, int64_t share,
                int64_t width, int64_t columns, const std::optional<FragmentForm>& form) const;

  const Session& session_;
  Routing routing_;
  std::string activation_;
  int64_t hidden_;
  int64_t inner_;
  std::optional<FragmentForm> gate_up_form_;
  std::optional<FragmentForm> down_form_;
};

extern template class Experts<false>;
extern template class Experts<true>;

}  // namespace ortolan::cuda

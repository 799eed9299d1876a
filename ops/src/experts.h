// y = the weighted sum of what a row's experts give: down . (activation(gate . x) * up . x), top_k experts a row.
#pragma once

#include <array>

#include "custom_op.h"
#include "expert_routing.h"
#include "expert_weights.h"

namespace ortolan {

class ExpertLayer {
 public:
  ExpertLayer(const NodeInfo& node, const Kernels& kernels, bool quantised_gate_up, bool quantised_down);
  void compute(const Call& call) const;

 private:
  struct Product;
  struct Task;

  // All of the layer for some rows.
  void run(const Call& call, const float* x, const float* logits, int64_t rows, float* y) const;
  // Products of all pairs with one weight. Only the weights of experts that have rows are read.
  void multiply(const Call& call, const Product& product, const RoutedRows& routed) const;
  void run_task(const Product& product, const Task& task) const;
  void finish(const Product& product, int64_t first, int tiles, int64_t pair, const float* products, int rows) const;
  // Adds up what the experts of each row gave, the best expert first.
  void sum(const Call& call, const RoutedRows& routed, const float* of_pairs, int64_t rows, float* y) const;

  const Kernels& kernels_;
  Routing routing_;
  ExpertWeights gate_up_;
  ExpertWeights down_;
  Activation activation_;
};

// The operator over weights of two types: binary32, or bytes for quantised ones.
template <abi::ElementType kGateUp, abi::ElementType kDown>
class Experts : public ExpertLayer {
 public:
  static constexpr const char* kName = "Experts";
  static constexpr std::array<Port, 4> kInputs{{{abi::kFloat}, {abi::kFloat}, {kGateUp}, {kDown}}};
  static constexpr std::array<Port, 1> kOutputs{{{abi::kFloat}}};
  static constexpr std::array<Alias, 0> kAliases{};

  Experts(const NodeInfo& node, const Kernels& kernels)
      : ExpertLayer(node, kernels, kGateUp == abi::kUint8, kDown == abi::kUint8) {}
};

}  // namespace ortolan

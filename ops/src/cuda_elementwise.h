// RMSNorm, AddRMSNorm and GatedActivation on a GPU.
#pragma once

#include <array>
#include <string>

#include "cuda_session.h"

namespace ortolan::cuda {

class RMSNorm {
 public:
  static constexpr const char* kName = "RMSNorm";
  static constexpr std::array<Port, 2> kInputs{{{abi::kActivation}, {abi::kActivation}}};
  static constexpr std::array<Port, 1> kOutputs{{{abi::kActivation}}};
  static constexpr std::array<Alias, 0> kAliases{};

  RMSNorm(const NodeInfo& node, const Session& session);
  void compute(const Call& call) const;

 private:
  const Session& session_;
  float epsilon_;
};

class AddRMSNorm {
 public:
  static constexpr const char* kName = "AddRMSNorm";
  static constexpr std::array<Port, 3> kInputs{{{abi::kActivation}, {abi::kActivation}, {abi::kActivation}}};
  static constexpr std::array<Port, 2> kOutputs{{{abi::kActivation}, {abi::kActivation}}};
  static constexpr std::array<Alias, 0> kAliases{};

  AddRMSNorm(const NodeInfo& node, const Session& session);
  void compute(const Call& call) const;

 private:
  const Session& session_;
  float epsilon_;
};

class GatedActivation {
 public:
  static constexpr const char* kName = "GatedActivation";
  static constexpr std::array<Port, 1> kInputs{{{abi::kActivation}}};
  static constexpr std::array<Port, 1> kOutputs{{{abi::kActivation}}};
  static constexpr std::array<Alias, 0> kAliases{};

  GatedActivation(const NodeInfo& node, const Session& session);
  void compute(const Call& call) const;

 private:
  const Session& session_;
  std::string key_;
};

// sum = x + residual, y its norm; y may lie where x does. A weight of one value for each column.
void launch_add_rms_norm(const Session& session, const Call& call, const Tensor& x, const Tensor& residual,
                         const Tensor& weight, const Tensor& y, const Tensor& sum, float epsilon);

// y [rows, width] = activation(gate) * up of x [rows, 2 * width].
void launch_gated_activation(const Session& session, const std::string& key, Stream stream, const void* x, void* y,
                             int64_t rows, int64_t width);

}  // namespace ortolan::cuda

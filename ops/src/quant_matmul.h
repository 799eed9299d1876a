// y = activation(norm(x) . W^T + bias) + residual, with W in the layout cpu-vnni.
#pragma once

#include <array>
#include <optional>

#include "custom_op.h"
#include "quant_weights.h"
#include "scratch.h"

namespace ortolan {

class QuantMatMul {
 public:
  static constexpr const char* kName = "QuantMatMul";
  static constexpr std::array<Port, 5> kInputs{
      {{abi::kFloat}, {abi::kUint8}, {abi::kFloat, true}, {abi::kFloat, true}, {abi::kFloat, true}}};
  static constexpr std::array<Port, 1> kOutputs{{{abi::kFloat}}};
  static constexpr std::array<Alias, 0> kAliases{};

  QuantMatMul(const NodeInfo& node, const Kernels& kernels);
  void compute(const Call& call) const;

 private:
  struct Inputs;

  Inputs inputs(const Call& call) const;
  // Rows as products read them, normalised: rounded to int8 in panels, or in float32 where products are exact.
  void round(const Call& call, Inputs& inputs, Scratch& scratch) const;
  void normalise(const Call& call, Inputs& inputs, Scratch& scratch) const;
  QuantPanel panel(const Inputs& inputs, int64_t row) const;
  // The tiles of a unit: two neighbours, or those of gate and up. Returns their number.
  int tiles(const Inputs& inputs, int64_t unit, QuantTile* tile) const;
  void multiply(const Inputs& inputs, int64_t unit, int64_t first_row, int64_t last_row) const;
  void multiply_exactly(const Inputs& inputs, int64_t unit, int64_t first_row, int64_t last_row) const;
  // What becomes of the products of a unit's tile, from a row on.
  Epilogue epilogue(const Inputs& inputs, int64_t unit, int tile, int64_t row) const;
  void finish(const Inputs& inputs, int64_t unit, int tiles, int64_t row, const float* products, int rows) const;

  QuantWeights weights_;
  const Kernels& kernels_;
  std::optional<Activation> activation_;
  float norm_epsilon_;
  int64_t width_;  // of y
  Tensor norm_;    // norm and bias, where they are initialisers of the graph
  Tensor bias_;
};

}  // namespace ortolan

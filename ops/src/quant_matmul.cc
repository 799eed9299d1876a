#include "quant_matmul.h"

#include <algorithm>
#include <cstring>

#include "gated_activation.h"

namespace ortolan {
namespace {

// A task's cost in bytes of weights; reading one takes about as long as kWorkPerByte multiplications of integers.
constexpr int64_t kTaskCost = 32768;
constexpr int64_t kWorkPerByte = 8;
// Tasks at most: enough for many threads to end together, few enough that taking them costs nothing.
constexpr int64_t kMostTasks = 128;
// Rows that pass over a tile while it is in the nearest cache.
constexpr int64_t kRowBlock = 64;
// Values that one task normalises and rounds.
constexpr int64_t kPrepareSize = 8192;

}  // namespace

struct QuantMatMul::Inputs {
  const float* x = nullptr;
  const uint8_t* weights = nullptr;
  const float* norm = nullptr;
  const float* bias = nullptr;
  const float* residual = nullptr;
  float* y = nullptr;
  int64_t rows = 0;
  QuantRows rounded{};
};

QuantMatMul::QuantMatMul(const NodeInfo& node, const Kernels& kernels)
    : weights_(node),
      kernels_(kernels),
      norm_epsilon_(node.real("norm_epsilon", 1e-6f)),
      width_(weights_.rows()) {
  const std::string name = node.text("activation", "none");
  if (name != "none") {
    activation_ = activation_of(node, name);
    if (weights_.rows() % (2 * kTile) != 0) {
      node.refuse("rows", "is " + std::to_string(weights_.rows()) +
                              ". With an activation, gate and up must each be a multiple of 16 rows.");
    }
    width_ /= 2;
  }
  if (!(norm_epsilon_ >= 0.0f))
    node.refuse("norm_epsilon", "is " + std::to_string(norm_epsilon_) + ". Give a number that is not negative.");
}

QuantMatMul::Inputs QuantMatMul::inputs(const Call& call) const {
  Inputs inputs;
  const Tensor x = call.input(0, "x");
  if (x.shape.empty() || x.shape.back() != weights_.columns()) {
    call.refuse("input x has shape " + shape_text(x.shape) + ", but the weights have " +
                std::to_string(weights_.columns()) + " columns. Give rows of that length.");
  }
  std::vector<int64_t> shape = x.shape;
  shape.back() = width_;
  const auto optional = [&](size_t index, const char* name, const std::vector<int64_t>& wanted) -> const float* {
    const Tensor tensor = call.optional_input(index, name);
    if (!tensor.present) return nullptr;
    if (tensor.shape != wanted) {
      call.refuse(std::string("input ") + name + " has shape " + shape_text(tensor.shape) + ". Give " +
                  shape_text(wanted) + ".");
    }
    return tensor.as<float>();
  };
  inputs.x = x.as<float>();
  inputs.rows = x.count / weights_.columns();
  inputs.weights = weights_.data(call, 1);
  inputs.norm = optional(2, "norm", {weights_.columns()});
  inputs.bias = optional(3, "bias", {weights_.rows()});
  inputs.residual = optional(4, "residual", shape);
  inputs.y = call.output(0, "y", shape).as<float>();
  return inputs;
}

void QuantMatMul::prepare(const Call& call, Inputs& inputs, Scratch& scratch) const {
  const int64_t columns = weights_.columns();
  const float* x = inputs.x;
  float* normalised = inputs.norm ? scratch.take(static_cast<size_t>(inputs.rows * columns)) : nullptr;
  QuantRows& rounded = inputs.rounded;
  if (!kernels_.exact) {
    rounded.code_stride = static_cast<size_t>(weights_.groups() * weights_.form().group *
                                              kernels_.activation_bytes(weights_.form().bits));
    rounded.scale_stride = static_cast<size_t>(weights_.groups());
    const auto rows = static_cast<size_t>(inputs.rows);
    rounded.codes = reinterpret_cast<int8_t*>(scratch.take(rows * rounded.code_stride / sizeof(float)));
    rounded.scales = reinterpret_cast<GroupScale*>(
        scratch.take(rows * rounded.scale_stride * (sizeof(GroupScale) / sizeof(float))));
  }
  const int64_t at_once = std::max<int64_t>(1, kPrepareSize / columns);
  call.parallel_for(static_cast<size_t>((inputs.rows + at_once - 1) / at_once), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * at_once;
    for (int64_t row = first; row < std::min(inputs.rows, first + at_once); ++row) {
      const float* in = x + row * columns;
      if (normalised) {
        float* out = normalised + row * columns;
        kernels_.rms_norm(in, inputs.norm, norm_epsilon_, out, static_cast<size_t>(columns));
        in = out;
      }
      if (kernels_.exact) continue;
      const auto at = static_cast<size_t>(row);
      kernels_.quantise_row(weights_.form(), in, columns, rounded.codes + at * rounded.code_stride,
                            rounded.scales + at * rounded.scale_stride);
    }
  });
  if (normalised) inputs.x = normalised;
}

void QuantMatMul::products(const Inputs& inputs, int64_t tile, int64_t first_row, int count, float* out) const {
  const QuantTile weights = weights_.tile(inputs.weights, tile);
  const auto row = static_cast<size_t>(first_row);
  if (kernels_.exact) {
    const auto columns = static_cast<size_t>(weights_.columns());
    return kernels_.multiply_tile_exactly(weights, inputs.x + row * columns, columns, weights_.columns(), count, out);
  }
  QuantRows rows = inputs.rounded;
  rows.codes += row * rows.code_stride;
  rows.scales += row * rows.scale_stride;
  kernels_.multiply_tile(weights, rows, count, out);
}

// A unit is a tile of y: one tile of weights, or with an activation the tile of gate and that of up.
void QuantMatMul::multiply(const Inputs& inputs, int64_t unit, int64_t first_row, int64_t last_row) const {
  alignas(64) float y[kTileProducts * kTile];
  alignas(64) float up[kTileProducts * kTile];
  for (int64_t row = first_row; row < last_row; row += kTileProducts) {
    const int count = static_cast<int>(std::min<int64_t>(kTileProducts, last_row - row));
    products(inputs, unit, row, count, y);
    if (activation_) products(inputs, unit + width_ / kTile, row, count, up);
    for (int r = 0; r < count; ++r) finish(inputs, unit, row + r, y + r * kTile, up + r * kTile);
  }
}

void QuantMatMul::finish(const Inputs& inputs, int64_t unit, int64_t row, float* y, const float* up) const {
  const int64_t first = unit * kTile;
  const int count = static_cast<int>(std::min<int64_t>(kTile, width_ - first));
  float added[kTile];
  if (inputs.bias) {
    for (int i = 0; i < count; ++i) y[i] += inputs.bias[first + i];
    if (activation_) {
      for (int i = 0; i < count; ++i) added[i] = up[i] + inputs.bias[width_ + first + i];
      up = added;
    }
  }
  if (activation_) kernels_.gated_activation(*activation_, y, up, y, kTile);
  float* out = inputs.y + row * width_ + first;
  if (inputs.residual) {
    const float* residual = inputs.residual + row * width_ + first;
    for (int i = 0; i < count; ++i) out[i] = y[i] + residual[i];
  } else {
    std::memcpy(out, y, static_cast<size_t>(count) * sizeof(float));
  }
}

void QuantMatMul::compute(const Call& call) const {
  Inputs inputs = this->inputs(call);
  if (inputs.rows == 0) return;
  const auto rows = static_cast<size_t>(inputs.rows), groups = static_cast<size_t>(weights_.groups());
  const size_t padded = groups * static_cast<size_t>(weights_.form().group);
  const size_t code_floats = rows * padded * static_cast<size_t>(kernels_.activation_bytes(weights_.form().bits)) /
                             sizeof(float);
  Scratch scratch(Scratch::room(rows * static_cast<size_t>(weights_.columns())) + Scratch::room(code_floats) +
                  Scratch::room(rows * groups * (sizeof(GroupScale) / sizeof(float))));
  prepare(call, inputs, scratch);

  const int64_t units = (width_ + kTile - 1) / kTile;
  const int64_t row_blocks = (inputs.rows + kRowBlock - 1) / kRowBlock;
  const int64_t block_rows = std::min(inputs.rows, kRowBlock);
  const int64_t tiles = activation_ ? 2 : 1;
  const int64_t cost = tiles * (static_cast<int64_t>(weights_.tile_bytes()) +
                                block_rows * weights_.columns() * kTile / kWorkPerByte);
  const int64_t units_at_once =
      std::max({int64_t{1}, kTaskCost / cost, (units * row_blocks + kMostTasks - 1) / kMostTasks});
  const int64_t unit_blocks = (units + units_at_once - 1) / units_at_once;
  call.parallel_for(static_cast<size_t>(unit_blocks * row_blocks), [&](size_t task) {
    // Neighbouring tasks share weights rather than rows: weights are what does not fit the cache.
    const int64_t block = static_cast<int64_t>(task) % row_blocks;
    const int64_t first = static_cast<int64_t>(task) / row_blocks * units_at_once;
    const int64_t last_row = std::min(inputs.rows, (block + 1) * kRowBlock);
    for (int64_t unit = first; unit < std::min(units, first + units_at_once); ++unit) {
      multiply(inputs, unit, block * kRowBlock, last_row);
    }
  });
}

}  // namespace ortolan

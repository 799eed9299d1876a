#include "quant_matmul.h"

#include <algorithm>

#include "gated_activation.h"

namespace ortolan {
namespace {

// A task's cost in bytes of weights; reading one takes about as long as kWorkPerByte multiplications of integers.
constexpr int64_t kTaskCost = 8192;
constexpr int64_t kWorkPerByte = 8;
// Tasks at most: enough for many threads to end together, few enough that taking them costs nothing.
constexpr int64_t kMostTasks = 128;
// Rows that pass over a unit's tiles while these are in the nearest cache, whole panels. Where tiles are expanded
// first, as many as the second cache holds the codes of, but not so many that fewer than kFewTasks tasks are left.
constexpr int64_t kLeastBlock = 128, kMostBlock = 512, kBlockBytes = int64_t{1} << 19;
constexpr int64_t kFewTasks = 32;
// Values that one task normalises and rounds.
constexpr int64_t kPrepareSize = 8192;

int64_t rows_of_block(int64_t rows, int64_t units, int64_t row_bytes) {
  const int64_t fitting = kBlockBytes / row_bytes, shared = rows * units / kFewTasks;
  return std::clamp(std::min(fitting, shared) / kMostRows * kMostRows, kLeastBlock, kMostBlock);
}

}  // namespace

struct QuantMatMul::Inputs {
  const float* x = nullptr;
  const uint8_t* weights = nullptr;
  const float* norm = nullptr;
  const float* bias = nullptr;
  const float* residual = nullptr;
  float* y = nullptr;
  int64_t rows = 0;
  int8_t* codes = nullptr;  // of all panels, one after the other
  float* scales = nullptr;
  int64_t code_bytes = 0;  // of a row
};

QuantMatMul::QuantMatMul(const NodeInfo& node, const Kernels& kernels)
    : weights_(node, 1),
      kernels_(kernels),
      norm_epsilon_(node.real("norm_epsilon", 1e-6f)),
      width_(weights_.rows()),
      norm_(node.constant(2, "norm")),
      bias_(node.constant(3, "bias")) {
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
  Shape shape = x.shape;
  shape.back() = width_;
  const auto optional = [&](const Tensor& known, size_t index, const char* name,
                            const Shape& wanted) -> const float* {
    const Tensor tensor = call.optional_input(known, index, name);
    if (!tensor.present) return nullptr;
    if (tensor.shape != wanted) {
      call.refuse(std::string("input ") + name + " has shape " + shape_text(tensor.shape) + ". Give " +
                  shape_text(wanted) + ".");
    }
    return tensor.as<float>();
  };
  inputs.x = x.as<float>();
  inputs.rows = x.count / weights_.columns();
  inputs.weights = weights_.data(call);
  inputs.norm = optional(norm_, 2, "norm", {weights_.columns()});
  inputs.bias = optional(bias_, 3, "bias", {weights_.rows()});
  inputs.residual = optional({}, 4, "residual", shape);
  inputs.y = call.output(0, "y", shape).as<float>();
  return inputs;
}

QuantPanel QuantMatMul::panel(const Inputs& inputs, int64_t row) const {
  return {inputs.codes + row * inputs.code_bytes, inputs.scales + row * 2 * weights_.groups(),
          kernels_.panel_rows(weights_.form(), inputs.rows - row)};
}

void QuantMatMul::round(const Call& call, Inputs& inputs, Scratch& scratch) const {
  const int64_t columns = weights_.columns(), most = kernels_.panel_rows(weights_.form(), inputs.rows);
  inputs.code_bytes = weights_.groups() * kernels_.group_room(weights_.form());
  inputs.codes = reinterpret_cast<int8_t*>(
      scratch.take(static_cast<size_t>(inputs.rows * inputs.code_bytes) / sizeof(float)));
  inputs.scales = scratch.take(static_cast<size_t>(inputs.rows * 2 * weights_.groups()));
  const int64_t at_once = std::max<int64_t>(1, kPrepareSize / (columns * most)) * most;
  call.parallel_for(static_cast<size_t>((inputs.rows + at_once - 1) / at_once), [&](size_t task) {
    Scratch normal(inputs.norm ? Scratch::room(static_cast<size_t>(columns)) : 0);
    float* const out = normal.take(0);
    const int64_t first = static_cast<int64_t>(task) * at_once, last = std::min(inputs.rows, first + at_once);
    for (int64_t row = first; row < last;) {
      const QuantPanel into = panel(inputs, row);
      for (int r = 0; r < into.rows; ++r) {
        const float* in = inputs.x + (row + r) * columns;
        if (inputs.norm) {
          kernels_.rms_norm(in, inputs.norm, norm_epsilon_, out, static_cast<size_t>(columns));
          in = out;
        }
        kernels_.quantise_row(weights_.form(), in, columns, into, r);
      }
      row += into.rows;
    }
  });
}

void QuantMatMul::normalise(const Call& call, Inputs& inputs, Scratch& scratch) const {
  if (!inputs.norm) return;
  const int64_t columns = weights_.columns();
  float* normal = scratch.take(static_cast<size_t>(inputs.rows * columns));
  call.parallel_for(static_cast<size_t>(inputs.rows), [&](size_t task) {
    const int64_t at = static_cast<int64_t>(task) * columns;
    kernels_.rms_norm(inputs.x + at, inputs.norm, norm_epsilon_, normal + at, static_cast<size_t>(columns));
  });
  inputs.x = normal;
}

int QuantMatMul::tiles(const Inputs& inputs, int64_t unit, QuantTile* tile) const {
  const int64_t first = activation_ ? unit : unit * kTilesAtOnce;
  const int64_t second = activation_ ? unit + width_ / kTile : first + 1;
  tile[0] = weights_.tile(inputs.weights, first);
  if (second >= weights_.tiles()) return 1;
  tile[1] = weights_.tile(inputs.weights, second);
  return 2;
}

void QuantMatMul::multiply(const Inputs& inputs, int64_t unit, int64_t first_row, int64_t last_row) const {
  QuantTile tile[kTilesAtOnce];
  const int count = tiles(inputs, unit, tile);
  const int expand_from = kernels_.expand_from(weights_.form());
  const bool wide = expand_from > 0 && last_row - first_row >= expand_from;
  const size_t wide_floats =
      wide ? Scratch::room(weights_.form().expanded_bytes(static_cast<int>(weights_.groups())) / sizeof(float)) : 0;
  Scratch scratch(static_cast<size_t>(count) * wide_floats);
  for (int t = 0; wide && t < count; ++t) {
    tile[t] = kernels_.expand(tile[t], reinterpret_cast<uint8_t*>(scratch.take(wide_floats)));
  }
  alignas(64) float products[kTilesAtOnce * kMostRows * kTile];
  for (int64_t row = first_row; row < last_row;) {
    const QuantPanel of_rows = panel(inputs, row);
    for (int t = 0; t < (activation_ ? 1 : count); ++t) {
      kernels_.ask_for_rows(epilogue(inputs, unit, t, row), of_rows.rows);
    }
    kernels_.multiply_tiles(tile, count, of_rows, products);
    finish(inputs, unit, count, row, products, of_rows.rows);
    row += of_rows.rows;
  }
}

void QuantMatMul::multiply_exactly(const Inputs& inputs, int64_t unit, int64_t first_row, int64_t last_row) const {
  QuantTile tile[kTilesAtOnce];
  const int count = tiles(inputs, unit, tile);
  const auto columns = static_cast<size_t>(weights_.columns());
  alignas(64) float products[kTilesAtOnce * kMostRows * kTile];
  for (int64_t row = first_row; row < last_row; row += kMostRows) {
    const int rows = static_cast<int>(std::min<int64_t>(kMostRows, last_row - row));
    for (int t = 0; t < count; ++t) {
      kernels_.multiply_tile_exactly(tile[t], inputs.x + static_cast<size_t>(row) * columns, columns,
                                     weights_.columns(), rows, products + t * rows * kTile);
    }
    finish(inputs, unit, count, row, products, rows);
  }
}

Epilogue QuantMatMul::epilogue(const Inputs& inputs, int64_t unit, int tile, int64_t row) const {
  const int64_t first = (activation_ ? unit : unit * kTilesAtOnce + tile) * kTile, at = row * width_ + first;
  Epilogue how{};
  how.bias = inputs.bias ? inputs.bias + first : nullptr;
  how.up_bias = inputs.bias && activation_ ? inputs.bias + width_ + first : nullptr;
  how.residual = inputs.residual ? inputs.residual + at : nullptr;
  how.out = inputs.y + at;
  how.stride = width_;
  how.count = static_cast<int>(std::min<int64_t>(kTile, width_ - first));
  how.gated = activation_.has_value();
  how.activation = activation_.value_or(Activation::kSilu);
  return how;
}

void QuantMatMul::finish(const Inputs& inputs, int64_t unit, int tiles, int64_t row, const float* products,
                         int rows) const {
  for (int t = 0; t < (activation_ ? 1 : tiles); ++t) {
    kernels_.finish_rows(epilogue(inputs, unit, t, row), products + t * rows * kTile, products + rows * kTile, rows);
  }
}

void QuantMatMul::compute(const Call& call) const {
  Inputs inputs = this->inputs(call);
  if (inputs.rows == 0) return;
  const auto rows = static_cast<size_t>(inputs.rows), groups = static_cast<size_t>(weights_.groups());
  const auto columns = static_cast<size_t>(weights_.columns());
  const size_t code_floats = groups * static_cast<size_t>(kernels_.group_room(weights_.form())) / sizeof(float);
  const size_t floats = kernels_.exact ? Scratch::room(rows * columns)
                                       : Scratch::room(rows * code_floats) + Scratch::room(rows * 2 * groups);
  Scratch scratch(floats);
  if (kernels_.exact) {
    normalise(call, inputs, scratch);
  } else {
    round(call, inputs, scratch);
  }

  const int64_t at_once = activation_ ? 1 : kTilesAtOnce;
  const int64_t units = ((width_ + kTile - 1) / kTile + at_once - 1) / at_once;
  const int64_t row_block =
      kernels_.expand_from(weights_.form()) > 0
          ? rows_of_block(inputs.rows, units, static_cast<int64_t>((code_floats + 2 * groups) * sizeof(float)))
          : kLeastBlock;
  const int64_t row_blocks = (inputs.rows + row_block - 1) / row_block;
  const int64_t block_rows = std::min(inputs.rows, row_block);
  const int64_t cost = kTilesAtOnce * (static_cast<int64_t>(weights_.tile_bytes()) +
                                       block_rows * weights_.columns() * kTile / kWorkPerByte);
  const int64_t units_a_task =
      std::max({int64_t{1}, kTaskCost / cost, (units * row_blocks + kMostTasks - 1) / kMostTasks});
  const int64_t unit_blocks = (units + units_a_task - 1) / units_a_task;
  call.parallel_for(static_cast<size_t>(unit_blocks * row_blocks), [&](size_t task) {
    // Neighbouring tasks share weights rather than rows: weights are what does not fit the cache.
    const int64_t block = static_cast<int64_t>(task) % row_blocks;
    const int64_t first = static_cast<int64_t>(task) / row_blocks * units_a_task;
    const int64_t last_row = std::min(inputs.rows, (block + 1) * row_block);
    const UnitUse use{kernels_};
    for (int64_t unit = first; unit < std::min(units, first + units_a_task); ++unit) {
      if (kernels_.exact) {
        multiply_exactly(inputs, unit, block * row_block, last_row);
      } else {
        multiply(inputs, unit, block * row_block, last_row);
      }
    }
  });
}

}  // namespace ortolan

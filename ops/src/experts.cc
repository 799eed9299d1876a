#include "experts.h"

#include <algorithm>

#include "gated_activation.h"

namespace ortolan {
namespace {

// A task's cost in bytes of weights; reading one takes about as long as kWorkPerByte multiplications.
constexpr int64_t kTaskCost = 8192;
constexpr int64_t kWorkPerByte = 8;
// Tasks at most, but for one an expert and block of rows.
constexpr int64_t kMostTasks = 128;
// Rows that pass over a unit's tiles while they are in the nearest cache; whole panels.
constexpr int64_t kRowBlock = 128;
// Numbers that the intermediate results of rows taken together may hold, for each of their two sizes.
constexpr int64_t kMostNumbers = int64_t{16} << 20;
// Values that one task adds up.
constexpr int64_t kSumSize = 8192;

}  // namespace

// One product: rows with a weight of their experts, into `out`, a row a pair.
struct ExpertLayer::Product {
  const ExpertWeights& weights;
  const uint8_t* data;
  ExpertRows rows;
  float* out;
  int64_t width;  // of out
  bool gated;     // the weight's rows are gate | up
  int64_t units() const {
    const int64_t outputs = kTile * (gated ? 1 : kTilesAtOnce);
    return (width + outputs - 1) / outputs;
  }
};

// Some units of one expert with some of its pairs. A unit is two neighbouring tiles, or those of gate and up.
struct ExpertLayer::Task {
  int64_t expert;
  int64_t first_unit, last_unit;
  int64_t first_pair, last_pair;
  int64_t end;  // of the expert's pairs
};

ExpertLayer::ExpertLayer(const NodeInfo& node, const Kernels& kernels, bool quantised_gate_up, bool quantised_down)
    : kernels_(kernels),
      routing_(node),
      gate_up_(node.under("gate_up_"), 2, quantised_gate_up, routing_.experts(), kernels),
      down_(node.under("down_"), 3, quantised_down, routing_.experts(), kernels),
      activation_(activation_of(node, node.text("activation", "silu"))) {
  const int64_t rows = gate_up_.rows();
  if (rows % 2 != 0 || (gate_up_.quantised() && rows % (2 * kTile) != 0)) {
    node.refuse("gate_up_rows", "gives each expert " + std::to_string(rows) +
                                    ". Gate and up have as many rows, quantised ones a multiple of 16.");
  }
  if (down_.columns() != rows / 2 || down_.rows() != gate_up_.columns()) {
    node.refuse("down_rows", "and down_columns give each expert " + std::to_string(down_.rows()) + " x " +
                                 std::to_string(down_.columns()) + ". Give " + std::to_string(gate_up_.columns()) +
                                 " x " + std::to_string(rows / 2) + ", the way back from gate and up.");
  }
}

void ExpertLayer::compute(const Call& call) const {
  const Tensor x = call.input(0, "x"), logits = call.input(1, "logits");
  const int64_t width = gate_up_.columns();
  if (x.shape.empty() || x.shape.back() != width) {
    call.refuse("input x has shape " + shape_text(x.shape) + ", but the experts have " + std::to_string(width) +
                " columns. Give rows of that length.");
  }
  Shape wanted = x.shape;
  wanted.back() = routing_.experts();
  if (logits.shape != wanted) {
    call.refuse("input logits has shape " + shape_text(logits.shape) + ". Give " + shape_text(wanted) +
                ", one number an expert for each row.");
  }
  const Tensor y = call.output(0, "y", x.shape);
  const int64_t rows = x.count / width;
  // A row's bits depend on the row alone, so rows may be taken in blocks that bound the memory.
  const int64_t numbers = routing_.top_k() * std::max(width, down_.columns());
  const int64_t at_once = std::max<int64_t>(kRowBlock, kMostNumbers / numbers);
  for (int64_t row = 0; row < rows; row += at_once) {
    run(call, x.as<float>() + row * width, logits.as<float>() + row * routing_.experts(),
        std::min(at_once, rows - row), y.as<float>() + row * width);
  }
}

void ExpertLayer::run(const Call& call, const float* x, const float* logits, int64_t rows, float* y) const {
  const RoutedRows routed = routing_.route(call, logits, rows);
  const int64_t pairs = routed.pairs(), width = gate_up_.columns(), inner = down_.columns();
  Scratch results(Scratch::room(static_cast<size_t>(pairs * width)) + Scratch::room(static_cast<size_t>(pairs * inner)));
  float* const gated = results.take(static_cast<size_t>(pairs * inner));
  float* const out = results.take(static_cast<size_t>(pairs * width));
  {
    Scratch scratch(gate_up_.room(pairs));
    const ExpertRows in = gate_up_.lay_out(call, x, routed, routed.row.data(), scratch);
    multiply(call, {gate_up_, gate_up_.data(call), in, gated, inner, true}, routed);
  }
  {
    Scratch scratch(down_.room(pairs));
    const ExpertRows in = down_.lay_out(call, gated, routed, nullptr, scratch);
    multiply(call, {down_, down_.data(call), in, out, width, false}, routed);
  }
  sum(call, routed, out, rows, y);
}

void ExpertLayer::multiply(const Call& call, const Product& product, const RoutedRows& routed) const {
  const ExpertWeights& weights = product.weights;
  const int64_t units = product.units();
  const auto cost = [&](int64_t rows) {
    return kTilesAtOnce * (weights.tile_bytes() + rows * weights.columns() * kTile / kWorkPerByte);
  };
  const auto for_each_block = [&](auto&& body) {
    for (int64_t expert = 0; expert < routing_.experts(); ++expert) {
      const auto at = static_cast<size_t>(expert);
      for (int64_t pair = routed.first[at]; pair < routed.first[at + 1]; pair += kRowBlock)
        body(expert, pair, std::min(routed.first[at + 1], pair + kRowBlock), routed.first[at + 1]);
    }
  };
  int64_t total = 0;
  for_each_block([&](int64_t, int64_t first, int64_t last, int64_t) { total += units * cost(last - first); });
  const int64_t a_task = std::max(kTaskCost, total / kMostTasks);
  std::vector<Task> tasks;
  for_each_block([&](int64_t expert, int64_t first, int64_t last, int64_t end) {
    const int64_t at_once = std::max<int64_t>(1, a_task / cost(last - first));
    for (int64_t unit = 0; unit < units; unit += at_once)
      tasks.push_back({expert, unit, std::min(units, unit + at_once), first, last, end});
  });
  call.parallel_for(tasks.size(), [&](size_t task) { run_task(product, tasks[task]); });
}

void ExpertLayer::run_task(const Product& product, const Task& task) const {
  const ExpertWeights& weights = product.weights;
  const size_t wide = weights.wide_bytes(task.last_pair - task.first_pair);
  Scratch scratch(Scratch::room(kTilesAtOnce * wide / sizeof(float)));
  auto* bytes = reinterpret_cast<uint8_t*>(scratch.take(0));
  const UnitUse use{kernels_};
  alignas(64) float products[kTilesAtOnce * kMostRows * kTile];
  for (int64_t unit = task.first_unit; unit < task.last_unit; ++unit) {
    const int64_t first = unit * kTile * (product.gated ? 1 : kTilesAtOnce);
    const int64_t neighbour = first + kTile < product.width ? first + kTile : -1;
    ExpertTiles tiles =
        weights.tiles(product.data, task.expert, {first, product.gated ? product.width + first : neighbour});
    if (wide) weights.widen(tiles, bytes, wide);
    for (int64_t pair = task.first_pair; pair < task.last_pair;) {
      const int rows = weights.multiply(tiles, product.rows, pair, task.end - pair, products);
      finish(product, first, tiles.count, pair, products, rows);
      pair += rows;
    }
  }
}

void ExpertLayer::finish(const Product& product, int64_t first, int tiles, int64_t pair, const float* products,
                         int rows) const {
  for (int t = 0; t < (product.gated ? 1 : tiles); ++t) {
    const int64_t at = first + t * kTile;
    Epilogue how{};
    how.out = product.out + pair * product.width + at;
    how.stride = product.width;
    how.count = static_cast<int>(std::min<int64_t>(kTile, product.width - at));
    how.gated = product.gated;
    how.activation = activation_;
    kernels_.finish_rows(how, products + t * rows * kTile, products + rows * kTile, rows);
  }
}

void ExpertLayer::sum(const Call& call, const RoutedRows& routed, const float* of_pairs, int64_t rows,
                      float* y) const {
  const int64_t width = gate_up_.columns(), top_k = routing_.top_k();
  const int64_t at_once = std::max<int64_t>(1, kSumSize / (width * top_k));
  call.parallel_for(static_cast<size_t>((rows + at_once - 1) / at_once), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * at_once;
    for (int64_t row = first; row < std::min(rows, first + at_once); ++row) {
      float* const out = y + row * width;
      std::fill(out, out + width, 0.0f);
      for (int64_t k = 0; k < top_k; ++k) {
        const auto at = static_cast<size_t>(row * top_k + k);
        const float* const in = of_pairs + routed.place[at] * width;
        const float weight = routed.weight[at];
        for (int64_t i = 0; i < width; ++i) out[i] += weight * in[i];
      }
    }
  });
}

}  // namespace ortolan

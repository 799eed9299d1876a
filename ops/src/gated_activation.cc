#include "gated_activation.h"

#include <algorithm>

namespace ortolan {
namespace {

// Outputs a task; below this a second thread costs more than it saves.
constexpr int64_t kTaskSize = 4096;

}  // namespace

Activation activation_of(const NodeInfo& node, const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  node.refuse("activation", "is '" + name + "'. Choose silu, gelu or gelu_tanh.");
}

GatedActivation::GatedActivation(const NodeInfo& node, const Kernels& kernels)
    : kernels_(kernels), kind_(activation_of(node, node.text("activation", "silu"))) {}

void GatedActivation::compute(const Call& call) const {
  const Tensor x = call.input(0, "x");
  if (x.shape.empty() || x.shape.back() % 2 != 0) {
    call.refuse("input x has shape " + shape_text(x.shape) +
                ", but its last axis must hold gate | up, two equal halves.");
  }
  Shape shape = x.shape;
  const int64_t width = shape.back() /= 2;
  const Tensor y = call.output(0, "y", shape);
  if (y.count == 0) return;

  const int64_t rows = y.count / width;
  const int64_t pieces = (width + kTaskSize - 1) / kTaskSize;
  // Several short rows make one task, a long row several.
  const int64_t rows_at_once = std::max<int64_t>(1, kTaskSize / width);
  const int64_t row_tasks = (rows + rows_at_once - 1) / rows_at_once;
  call.parallel_for(static_cast<size_t>(row_tasks * pieces), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) / pieces * rows_at_once;
    const int64_t last = std::min(rows, first + rows_at_once);
    const int64_t begin = static_cast<int64_t>(task) % pieces * kTaskSize;
    const int64_t end = std::min(width, begin + kTaskSize);
    for (int64_t row = first; row < last; ++row) {
      const float* gate = x.as<float>() + row * 2 * width;
      kernels_.gated_activation(kind_, gate + begin, gate + width + begin, y.as<float>() + row * width + begin,
                                static_cast<size_t>(end - begin));
    }
  });
}

}  // namespace ortolan

#include "add_rms_norm.h"

#include <algorithm>

namespace ortolan {
namespace {

// Floats a task; below this a second thread costs more than it saves.
constexpr int64_t kTaskSize = 8192;

}  // namespace

AddRMSNorm::AddRMSNorm(const NodeInfo& node, const Kernels& kernels)
    : kernels_(kernels), epsilon_(node.real("epsilon", 1e-6f)) {
  if (!(epsilon_ >= 0.0f)) {
    node.refuse("epsilon", "is " + std::to_string(epsilon_) + ". Give a number that is not negative.");
  }
}

void AddRMSNorm::compute(const Call& call) const {
  const Tensor x = call.input(0, "x"), residual = call.input(1, "residual"), weight = call.input(2, "weight");
  if (residual.shape != x.shape) {
    call.refuse("input residual has shape " + shape_text(residual.shape) + ", but x has " + shape_text(x.shape) +
                ". Give both the same shape.");
  }
  if (x.shape.empty() || weight.shape.size() != 1 || weight.count != x.shape.back()) {
    call.refuse("input weight has shape " + shape_text(weight.shape) + ", but x has " + shape_text(x.shape) +
                ": the weight must have one axis, as long as x's last.");
  }
  const Tensor y = call.output(0, "y", x.shape), sum = call.output(1, "sum", x.shape);
  if (x.count == 0) return;

  const int64_t width = x.shape.back(), rows = x.count / width;
  const int64_t rows_at_once = std::max<int64_t>(1, kTaskSize / width);
  call.parallel_for(static_cast<size_t>((rows + rows_at_once - 1) / rows_at_once), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * rows_at_once;
    for (int64_t row = first; row < std::min(rows, first + rows_at_once); ++row) {
      const int64_t at = row * width;
      kernels_.add_rms_norm(x.as<float>() + at, residual.as<float>() + at, weight.as<float>(), epsilon_,
                            y.as<float>() + at, sum.as<float>() + at, static_cast<size_t>(width));
    }
  });
}

}  // namespace ortolan

#include "cuda_elementwise.h"

namespace ortolan::cuda {
namespace {

int64_t columns_of(const Call& call, const Tensor& x, const Tensor& weight) {
  if (x.shape.empty() || weight.shape.size() != 1 || weight.shape[0] != x.shape.back()) {
    call.refuse("input weight has shape " + shape_text(weight.shape) + ", but x has " + shape_text(x.shape) +
                ". The weight holds one value for each column of x.");
  }
  return x.shape.back();
}

// The kernel of a norm, which keeps a row in registers. Refuses rows that it was not compiled for.
const Kernel& norm_kernel(const Session& session, const Call& call, const char* name, int64_t columns) {
  const Kernel& kernel = session.device.find(session.key(name), 1, columns);
  if (columns > kernel.constant("BLOCK")) {
    call.refuse("input x has " + std::to_string(columns) + " columns, but the bundle's kernel " + kernel.key +
                " was compiled for up to " + std::to_string(kernel.constant("BLOCK")) + ". Export the model anew.");
  }
  return kernel;
}

}  // namespace

RMSNorm::RMSNorm(const NodeInfo& node, const Session& session)
    : session_(session), epsilon_(node.real("epsilon", 1e-6f)) {}

void RMSNorm::compute(const Call& call) const {
  const Tensor x = call.input(0, "x"), weight = call.input(1, "weight");
  const int64_t columns = columns_of(call, x, weight);
  const Tensor y = call.output(0, "y", x.shape);
  if (x.count == 0) return;
  session_.device.launch(norm_kernel(session_, call, "rms_norm", columns), call.stream(),
                         {x.count / columns}, x.data, weight.data, y.data, static_cast<int32_t>(columns), epsilon_);
}

AddRMSNorm::AddRMSNorm(const NodeInfo& node, const Session& session)
    : session_(session), epsilon_(node.real("epsilon", 1e-6f)) {}

void AddRMSNorm::compute(const Call& call) const {
  const Tensor x = call.input(0, "x"), residual = call.input(1, "residual"), weight = call.input(2, "weight");
  columns_of(call, x, weight);
  if (residual.shape != x.shape) {
    call.refuse("input residual has shape " + shape_text(residual.shape) + ", but x has " + shape_text(x.shape) + ".");
  }
  const Tensor y = call.output(0, "y", x.shape), sum = call.output(1, "sum", x.shape);
  if (x.count == 0) return;
  launch_add_rms_norm(session_, call, x, residual, weight, y, sum, epsilon_);
}

void launch_add_rms_norm(const Session& session, const Call& call, const Tensor& x, const Tensor& residual,
                         const Tensor& weight, const Tensor& y, const Tensor& sum, float epsilon) {
  const int64_t columns = x.shape.back();
  session.device.launch(norm_kernel(session, call, "add_rms_norm", columns), call.stream(), {x.count / columns}, x.data,
                        residual.data, weight.data, y.data, sum.data, static_cast<int32_t>(columns), epsilon);
}

GatedActivation::GatedActivation(const NodeInfo& node, const Session& session)
    : session_(session), key_(session.key("gated_activation", node.text("activation", "silu"))) {}

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
  launch_gated_activation(session_, key_, call.stream(), x.data, y.data, y.count / width, width);
}

void launch_gated_activation(const Session& session, const std::string& key, Stream stream, const void* x, void* y,
                             int64_t rows, int64_t width) {
  const Kernel& kernel = session.device.find(key);
  const int64_t block = kernel.constant("BLOCK");
  session.device.launch(kernel, stream, {rows, (width + block - 1) / block}, x, y, static_cast<int32_t>(width));
}

}  // namespace ortolan::cuda

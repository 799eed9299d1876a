#include "cuda_linear.h"

#include <algorithm>

#include "cuda_elementwise.h"

namespace ortolan::cuda {
namespace {

// Rows up to which the bundle's kernels are faster than cuBLAS.
constexpr int64_t kTileRows = 64;
// The same for quantised weights, which cuBLAS needs as float16 first.
constexpr int64_t kQuantTileRows = 512;

int32_t small(int64_t value) { return static_cast<int32_t>(value); }

int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// The rest of a kernel's key: the type of its result, bias or not, activation.
std::string flags(bool logits, bool bias, const std::string& activation) {
  return std::string(logits ? "float32" : "same") + "/" + (bias ? "bias" : "plain") + "/" + activation;
}

// More rows than a kernel of the bundle serves: cuBLAS, with bias and activation in kernels of their own.
void multiply_many(const Session& session, Stream stream, const void* x, const void* w, const Tensor& bias,
                   const Tensor& y, char* scratch, int64_t rows, int64_t height, int64_t columns, bool logits,
                   const std::string& activation) {
  void* product = activation == "none" ? y.data : scratch;
  if (bias.present) {
    const Kernel& kernel = session.device.find(session.key("bias_rows", logits ? "float32" : "same"));
    session.device.launch(kernel, stream, {rows, up(height, kernel.constant("BLOCK"))}, bias.data, product,
                          small(height));
  }
  session.device.blas().multiply(x, w, product, static_cast<int>(rows), static_cast<int>(height),
                                 static_cast<int>(columns), session.blas_type(),
                                 logits ? Type::kFloat32 : session.blas_type(), bias.present);
  if (activation != "none") {
    launch_gated_activation(session, session.key("gated_activation", activation), stream, product, y.data, rows,
                            height / 2);
  }
}

struct Shape {
  int64_t rows;
  int64_t height;  // of W
  int64_t width;   // of y
  int64_t columns;
};

Shape shape_of(const Call& call, const Tensor& x, int64_t height, int64_t columns, const Tensor& bias,
               const std::string& activation) {
  if (x.shape.size() != 2 || x.shape[1] != columns) {
    call.refuse("input x has shape " + shape_text(x.shape) + ", but the weights have " + std::to_string(columns) +
                " columns. Give [tokens, " + std::to_string(columns) + "].");
  }
  if (bias.present && bias.shape != ortolan::Shape{height}) {
    call.refuse("input bias has shape " + shape_text(bias.shape) + ", but the weights have " +
                std::to_string(height) + " rows.");
  }
  return {x.shape[0], height, activation == "none" ? height : height / 2, columns};
}

std::string form_of(const NodeInfo& node) {
  if (node.text("layout", "") != "cuda-planes") node.refuse("layout", "must be cuda-planes for a GPU.");
  return std::to_string(node.integer("bits")) + "." + std::to_string(node.integer("group")) +
         (node.integer("minima", 0) ? ".minima" : "");
}

}  // namespace

template <bool kLogits>
Linear<kLogits>::Linear(const NodeInfo& node, const Session& session)
    : session_(session), activation_(node.text("activation", "none")) {}

template <bool kLogits>
void Linear<kLogits>::compute(const Call& call) const {
  const Tensor x = call.input(0, "x"), w = call.input(1, "weight"), bias = call.optional_input(2, "bias");
  if (w.shape.size() != 2) call.refuse("input weight has shape " + shape_text(w.shape) + ". Give [N, K].");
  const Shape shape = shape_of(call, x, w.shape[0], w.shape[1], bias, activation_);
  const Tensor y = call.output(0, "y", {shape.rows, shape.width});
  if (y.count == 0) return;
  const std::string rest = flags(kLogits, bias.present, activation_);
  const Stream stream = call.stream();
  if (shape.rows == 1) {
    const Kernel& kernel = session_.device.find(session_.key("linear_row", rest), 1, shape.columns);
    session_.device.launch(kernel, stream, {up(shape.width, kernel.constant("BLOCK_N"))}, x.data, w.data, bias.data,
                           y.data, small(shape.width), small(shape.columns));
  } else if (shape.rows <= kTileRows) {
    const Kernel& kernel = session_.device.find(session_.key("linear_tile", rest), shape.rows, shape.columns);
    session_.device.launch(kernel, stream, {up(shape.width, kernel.constant("BLOCK_N"))}, x.data, w.data, bias.data,
                           y.data, small(shape.rows), small(shape.width), small(shape.columns));
  } else {
    const size_t bytes = activation_ == "none" ? 0 : static_cast<size_t>(shape.rows * shape.height) * 2;
    multiply_many(session_, stream, x.data, w.data, bias, y, session_.device.scratch(bytes), shape.rows,
                  shape.height, shape.columns, kLogits, activation_);
  }
}

template <bool kLogits>
QuantMatMul<kLogits>::QuantMatMul(const NodeInfo& node, const Session& session)
    : session_(session),
      activation_(node.text("activation", "none")),
      form_(form_of(node)),
      rows_(node.integer("rows")),
      columns_(node.integer("columns")),
      groups_(up(columns_, std::max<int64_t>(1, node.integer("group")))) {
  if (!session.half()) node.refuse("bits", "asks for quantised weights, whose kernels compute in float16 only.");
}

template <bool kLogits>
void QuantMatMul<kLogits>::compute(const Call& call) const {
  const Tensor x = call.input(0, "x"), w = call.input(1, "weights"), bias = call.optional_input(3, "bias");
  if (call.optional_input(2, "norm").present || call.optional_input(4, "residual").present)
    call.refuse("inputs norm and residual are for the target cpu.");
  if (w.shape.size() != 2 || w.shape[0] != rows_) {
    call.refuse("input weights has shape " + shape_text(w.shape) + ", but the node names " + std::to_string(rows_) +
                " rows. Give [rows, bytes of a row].");
  }
  const Shape shape = shape_of(call, x, rows_, columns_, bias, activation_);
  const Tensor y = call.output(0, "y", {shape.rows, shape.width});
  if (y.count == 0) return;
  const std::string rest = form_ + "/" + flags(kLogits, bias.present, activation_);
  const Stream stream = call.stream();
  const int32_t row_bytes = small(w.shape[1]), groups = small(groups_);
  if (shape.rows == 1) {
    const Kernel& kernel = session_.device.find(session_.key("quant_row", rest), 1, shape.columns);
    session_.device.launch(kernel, stream, {up(shape.width, kernel.constant("BLOCK_N"))}, x.data, w.data, w.data,
                           bias.data, y.data, small(shape.width), small(shape.columns), groups, row_bytes);
  } else if (shape.rows <= kQuantTileRows) {
    const Kernel& kernel = session_.device.find(session_.key("quant_tile", rest), shape.rows, shape.columns);
    const Grid grid{up(shape.width, kernel.constant("BLOCK_N")), up(shape.rows, kernel.constant("BLOCK_M"))};
    session_.device.launch(kernel, stream, grid, x.data, w.data, w.data, bias.data, y.data, small(shape.rows),
                           small(shape.width), small(shape.columns), groups, row_bytes);
  } else {
    const size_t product = activation_ == "none" ? 0 : static_cast<size_t>(up(shape.rows * shape.height * 2, 256)) * 256;
    char* scratch = session_.device.scratch(product + static_cast<size_t>(shape.height * shape.columns) * 2);
    const Kernel& kernel = session_.device.find(session_.key("dequantise", form_));
    void* plain = scratch + product;
    session_.device.launch(kernel, stream, {shape.height, up(row_bytes, 4 * kernel.constant("BLOCK_W"))}, w.data,
                           w.data, plain, small(shape.columns), groups, row_bytes);
    multiply_many(session_, stream, x.data, plain, bias, y, scratch, shape.rows, shape.height, shape.columns, kLogits,
                  activation_);
  }
}

QuantGather::QuantGather(const NodeInfo& node, const Session& session)
    : session_(session),
      form_(form_of(node)),
      rows_(node.integer("rows")),
      columns_(node.integer("columns")),
      groups_(up(columns_, std::max<int64_t>(1, node.integer("group")))) {}

void QuantGather::compute(const Call& call) const {
  const Tensor w = call.input(0, "weights"), ids = call.input(1, "ids");
  if (w.shape.size() != 2 || w.shape[0] != rows_) {
    call.refuse("input weights has shape " + shape_text(w.shape) + ", but the node names " + std::to_string(rows_) +
                " rows. Give [rows, bytes of a row].");
  }
  ortolan::Shape shape = ids.shape;
  shape.push_back(columns_);
  const Tensor y = call.output(0, "y", shape);
  if (y.count == 0) return;
  const Kernel& kernel = session_.device.find(session_.key("quant_gather", form_));
  const int32_t row_bytes = small(w.shape[1]);
  session_.device.launch(kernel, call.stream(), {ids.count, up(row_bytes, 4 * kernel.constant("BLOCK_W"))}, w.data,
                         w.data, ids.data, y.data, small(rows_), small(columns_), small(groups_), row_bytes);
}

template class Linear<false>;
template class Linear<true>;
template class QuantMatMul<false>;
template class QuantMatMul<true>;

}  // namespace ortolan::cuda

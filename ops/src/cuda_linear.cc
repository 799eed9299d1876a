#include "cuda_linear.h"

#include <algorithm>

#include "cuda_elementwise.h"

namespace ortolan::cuda {
namespace {

// Rows up to which the bundle's kernels are faster than cuBLAS.
constexpr int64_t kTileRows = 64;
// The same for quantised weights, which cuBLAS needs as float16 first.
constexpr int64_t kQuantTileRows = 128;
// The layout cuda-fragments (ops/cuda_layout.py): rows of a block, words of a row in one step.
constexpr int64_t kBlockRows = 64;
constexpr int64_t kStepWords = 32;

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

// The programs of a tile that split its columns: as many as fill the GPU, by the product's shape alone.
int64_t parts_of(const Kernel& kernel, int64_t tiles, int64_t steps) {
  const int64_t parts = std::clamp<int64_t>(kernel.constant("PROGRAMS") / tiles, 1, steps);
  return up(steps, up(steps, parts));
}

// How a kernel of ops/triton/few_rows.py is launched.
struct Tiles {
  Grid grid;
  char* partial;
  int32_t* counters;
};

Tiles tiles_of(const Session& session, const Kernel& kernel, const Shape& shape, int64_t step_columns, bool gated) {
  const int64_t tiles = up(shape.width, kernel.constant("BLOCK_N")), heights = up(shape.rows, kernel.constant("BLOCK_M"));
  const int64_t parts = parts_of(kernel, tiles, up(shape.columns, step_columns));
  if (parts == 1) return {{tiles, 1, heights}, session.device.scratch(0), session.device.counters(0)};
  const int64_t numbers = kernel.constant("BLOCK_N") * kernel.constant("BLOCK_M") * (gated ? 2 : 1);
  const auto bytes = static_cast<size_t>(tiles * heights * parts * numbers) * sizeof(float);
  return {{tiles, parts, heights}, session.device.scratch(bytes), session.device.counters(tiles * heights)};
}

}  // namespace

template <bool kLogits>
Linear<kLogits>::Linear(const NodeInfo& node, const Session& session)
    : session_(session), activation_(node.text("activation", "none")) {}

template <bool kLogits>
void Linear<kLogits>::compute(const Call& call) const {
  const Tensor x = call.input(0, "x"), w = call.input(1, "weight"), bias = call.optional_input(2, "bias");
  if (w.shape.size() != 2) call.refuse("input weight has shape " + shape_text(w.shape) + ". Give [N, K].");
  if (activation_ != "none" && w.shape[0] % 2 != 0)
    call.refuse("input weight has " + std::to_string(w.shape[0]) + " rows, but gate | up are two equal halves.");
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
    const Tiles tiles = tiles_of(session_, kernel, shape, kernel.constant("BLOCK_K"), activation_ != "none");
    session_.device.launch(kernel, stream, tiles.grid, x.data, w.data, bias.data, y.data, tiles.partial, tiles.counters,
                           small(shape.rows), small(shape.width), small(shape.columns));
  } else {
    const size_t bytes = activation_ == "none" ? 0 : static_cast<size_t>(shape.rows * shape.height) * 2;
    multiply_many(session_, stream, x.data, w.data, bias, y, session_.device.scratch(bytes), shape.rows,
                  shape.height, shape.columns, kLogits, activation_);
  }
}

FragmentForm::FragmentForm(const NodeInfo& node)
    : rows(node.integer("rows")),
      columns(node.integer("columns")),
      bits(node.integer("bits")),
      group(node.integer("group")),
      minima(node.integer("minima", 0) != 0) {
  if (node.text("layout", "") != "cuda-fragments") {
    node.refuse("layout", std::string("must be cuda-fragments for a GPU.") + kMisfit);
  }
  const bool known = (bits == 4 && (group == 32 || group == 64 || group == 128)) ||
                     (bits == 8 && (group == 16 || group == 32 || group == 64 || group == 128));
  if (!known) node.refuse("group", "must be 32, 64 or 128, or 16 with 8 bits.");
  if (rows < 1 || columns < 1) node.refuse("rows", "and columns must be at least 1.");
}

std::string FragmentForm::key() const {
  return std::to_string(bits) + "." + std::to_string(group) + (minima ? ".minima" : "");
}

int64_t FragmentForm::step_columns() const { return kStepWords * 32 / bits; }

int64_t FragmentForm::steps() const { return up(columns, step_columns()); }

int64_t FragmentForm::block_bytes() const {
  const int64_t groups = up(steps() * step_columns(), group);
  return kBlockRows * (4 * kStepWords * steps() + 2 * groups * (minima ? 2 : 1));
}

void FragmentForm::expect(const Call& call, const Tensor& weights) const {
  const ortolan::Shape wanted{up(rows, kBlockRows), block_bytes()};
  if (weights.shape != wanted) {
    call.refuse("input weights has shape " + shape_text(weights.shape) + ", but " + std::to_string(rows) + " rows of " +
                std::to_string(columns) + " columns in the form " + key() + " take " + shape_text(wanted) +
                "." + kMisfit);
  }
}

template <bool kLogits>
QuantMatMul<kLogits>::QuantMatMul(const NodeInfo& node, const Session& session)
    : session_(session), activation_(node.text("activation", "none")), form_(node) {
  if (!session.half()) node.refuse("bits", "asks for quantised weights, whose kernels compute in float16 only.");
  if (activation_ != "none" && form_.rows % (2 * kBlockRows) != 0)
    node.refuse("rows", "must be a multiple of 128 with an activation.");
}

template <bool kLogits>
void QuantMatMul<kLogits>::compute(const Call& call) const {
  const Tensor x = call.input(0, "x"), w = call.input(1, "weights"), bias = call.optional_input(3, "bias");
  if (call.optional_input(2, "norm").present || call.optional_input(4, "residual").present)
    call.refuse("inputs norm and residual are for the target cpu.");
  form_.expect(call, w);
  const Shape shape = shape_of(call, x, form_.rows, form_.columns, bias, activation_);
  const Tensor y = call.output(0, "y", {shape.rows, shape.width});
  if (y.count == 0) return;
  const std::string rest = form_.key() + "/" + flags(kLogits, bias.present, activation_);
  const Stream stream = call.stream();
  const int32_t columns = small(shape.columns), block_bytes = small(form_.block_bytes());
  if (shape.rows <= kQuantTileRows) {
    const Kernel& kernel = session_.device.find(session_.key("quant_tile", rest), shape.rows, shape.columns);
    const Tiles tiles = tiles_of(session_, kernel, shape, form_.step_columns(), activation_ != "none");
    session_.device.launch(kernel, stream, tiles.grid, x.data, w.data, w.data, bias.data, y.data, tiles.partial,
                           tiles.counters, small(shape.rows), small(shape.width), columns, block_bytes);
  } else {
    const int64_t product = activation_ == "none" ? 0 : room(shape.rows * shape.height * 2);
    char* scratch = session_.device.scratch(static_cast<size_t>(product + shape.height * shape.columns * 2));
    const Kernel& kernel = session_.device.find(session_.key("dequantise", form_.key()));
    void* plain = scratch + product;
    session_.device.launch(kernel, stream, {up(shape.height, kBlockRows), form_.steps()}, w.data, w.data, plain,
                           small(shape.height), columns, block_bytes);
    multiply_many(session_, stream, x.data, plain, bias, y, scratch, shape.rows, shape.height, shape.columns, kLogits,
                  activation_);
  }
}

QuantGather::QuantGather(const NodeInfo& node, const Session& session) : session_(session), form_(node) {}

void QuantGather::compute(const Call& call) const {
  const Tensor w = call.input(0, "weights"), ids = call.input(1, "ids");
  form_.expect(call, w);
  ortolan::Shape shape = ids.shape;
  shape.push_back(form_.columns);
  const Tensor y = call.output(0, "y", shape);
  if (y.count == 0) return;
  const Kernel& kernel = session_.device.find(session_.key("quant_gather", form_.key()));
  session_.device.launch(kernel, call.stream(), {ids.count, form_.steps()}, w.data, w.data, ids.data, y.data,
                         small(form_.rows), small(form_.columns), small(form_.block_bytes()));
}

template class Linear<false>;
template class Linear<true>;
template class QuantMatMul<false>;
template class QuantMatMul<true>;

}  // namespace ortolan::cuda

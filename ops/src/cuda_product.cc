#include "cuda_product.h"

#include <algorithm>

#include "cuda_elementwise.h"

namespace ortolan::cuda {
namespace {

// Rows up to which the bundle's kernels are faster than cuBLAS.
constexpr int64_t kTileRows = 64;
// The same for quantised weights, which cuBLAS needs as float16 first.
constexpr int64_t kQuantTileRows = 128;
static_assert(kDeferredRows <= kTileRows && kDeferredRows <= kQuantTileRows);
// The layout cuda-fragments (ops/cuda_layout.py): rows of a block, words of a row in one step.
constexpr int64_t kBlockRows = 64;
constexpr int64_t kStepWords = 32;

// More rows than a kernel of the bundle serves: cuBLAS, with bias and activation in kernels of their own. scratch
// takes [rows, height] where there is an activation.
void multiply_many(const Session& session, Stream stream, const Product& product, const void* w, void* y,
                   char* scratch) {
  const bool logits = product.result == "float32";
  const ProductShape& shape = product.shape;
  void* target = product.activation == "none" ? y : scratch;
  if (product.bias.present) {
    const Kernel& kernel = session.device.find(session.key("bias_rows", logits ? "float32" : "same"));
    session.device.launch(kernel, stream, {shape.rows, up(shape.height, kernel.constant("BLOCK"))}, product.bias.data,
                          target, small(shape.height));
  }
  session.device.blas().multiply(product.x.data, w, target, static_cast<int>(shape.rows),
                                 static_cast<int>(shape.height), static_cast<int>(shape.columns), session.blas_type(),
                                 logits ? Type::kFloat32 : session.blas_type(), product.bias.present);
  if (product.activation != "none") {
    launch_gated_activation(session, session.key("gated_activation", product.activation), stream, target, y,
                            shape.rows, shape.height / 2);
  }
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

Tiles tiles_of(const Session& session, const Kernel& kernel, const Product& product, int64_t step_columns) {
  const ProductShape& shape = product.shape;
  const int64_t tiles = up(shape.width, kernel.constant("BLOCK_N")), heights = up(shape.rows, kernel.constant("BLOCK_M"));
  const int64_t parts = parts_of(kernel, tiles, up(shape.columns, step_columns));
  if (parts == 1) return {{tiles, 1, heights}, session.device.scratch(0), session.device.counters(0)};
  const int64_t sides = product.activation == "none" ? 1 : 2;
  const int64_t numbers = kernel.constant("BLOCK_N") * kernel.constant("BLOCK_M") * sides;
  const auto bytes = static_cast<size_t>(tiles * heights * parts * numbers) * sizeof(float);
  return {{tiles, parts, heights}, session.device.scratch(bytes), session.device.counters(tiles * heights)};
}

}  // namespace

Product::Product(const Call& call, const Tensor& x, const Tensor& w, const Tensor& bias, int64_t height,
                 int64_t columns, const std::string& activation, const char* result)
    : x(x), w(w), bias(bias), shape{}, activation(activation), result(result) {
  if (x.shape.size() != 2 || x.shape[1] != columns) {
    call.refuse("input x has shape " + shape_text(x.shape) + ", but the weights have " + std::to_string(columns) +
                " columns. Give [tokens, " + std::to_string(columns) + "].");
  }
  if (bias.present && bias.shape != ortolan::Shape{height}) {
    call.refuse("input bias has shape " + shape_text(bias.shape) + ", but the weights have " +
                std::to_string(height) + " rows.");
  }
  shape = {x.shape[0], height, activation == "none" ? height : height / 2, columns};
}

std::string Product::flags() const { return result + "/" + (bias.present ? "bias" : "plain") + "/" + activation; }

DenseWeights::DenseWeights(const NodeInfo&, const Session& session, const std::string&) : session_(session) {}

Product DenseWeights::product(const Call& call, const Tensor& bias, const std::string& activation,
                              const char* result) const {
  const Tensor w = call.input(1, "weight");
  if (w.shape.size() != 2) call.refuse("input weight has shape " + shape_text(w.shape) + ". Give [N, K].");
  if (activation != "none" && w.shape[0] % 2 != 0)
    call.refuse("input weight has " + std::to_string(w.shape[0]) + " rows, but gate | up are two equal halves.");
  return {call, call.input(0, "x"), w, bias, w.shape[0], w.shape[1], activation, result};
}

const Kernel* DenseWeights::kernel(const Product& product) const {
  const ProductShape& shape = product.shape;
  if (shape.rows > kTileRows) return nullptr;
  const std::string key = session_.key(shape.rows == 1 ? "linear_row" : "linear_tile", product.flags());
  return &session_.device.find(key, shape.rows, shape.columns);
}

void DenseWeights::launch(const Kernel& kernel, Stream stream, const Product& product, void* y,
                          const Norms& norms) const {
  const ProductShape& shape = product.shape;
  const void *x = product.x.data, *w = product.w.data, *bias = product.bias.data;
  if (shape.rows == 1) {
    session_.device.launch(kernel, stream, {up(shape.width, kernel.constant("BLOCK_N"))}, x, w, bias, y, norms.squares,
                           small(norms.tiles), norms.residual, norms.gain, norms.unit, norms.total, norms.epsilon,
                           small(shape.width), small(shape.columns));
  } else {
    const Tiles tiles = tiles_of(session_, kernel, product, kernel.constant("BLOCK_K"));
    session_.device.launch(kernel, stream, tiles.grid, x, w, bias, y, tiles.partial, tiles.counters, norms.squares,
                           small(norms.tiles), norms.residual, norms.gain, norms.unit, norms.total, norms.epsilon,
                           small(shape.rows), small(shape.width), small(shape.columns));
  }
}

void DenseWeights::many(Stream stream, const Product& product, void* y) const {
  const size_t bytes = product.activation == "none" ? 0 : static_cast<size_t>(product.shape.rows * product.shape.height) * 2;
  multiply_many(session_, stream, product, product.w.data, y, session_.device.scratch(bytes));
}

FragmentForm::FragmentForm(const NodeInfo& node)
    : rows(node.integer("rows")),
      columns(node.integer("columns")),
      bits(node.integer("bits")),
      group(node.integer("group")),
      minima(node.integer("minima", 0) != 0) {
  if (node.text("layout", "") != "cuda-fragments") {
    node.refuse("layout", "must be cuda-fragments for a GPU. Export the model anew.");
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
                ". Export the model anew.");
  }
}

QuantWeights::QuantWeights(const NodeInfo& node, const Session& session, const std::string& activation)
    : session_(session), form_(node) {
  if (!session.half()) node.refuse("bits", "asks for quantised weights, whose kernels compute in float16 only.");
  if (activation != "none" && form_.rows % (2 * kBlockRows) != 0)
    node.refuse("rows", "must be a multiple of 128 with an activation.");
}

Product QuantWeights::product(const Call& call, const Tensor& bias, const std::string& activation,
                              const char* result) const {
  const Tensor w = call.input(1, "weights");
  form_.expect(call, w);
  return {call, call.input(0, "x"), w, bias, form_.rows, form_.columns, activation, result};
}

const Kernel* QuantWeights::kernel(const Product& product) const {
  const ProductShape& shape = product.shape;
  if (shape.rows > kQuantTileRows) return nullptr;
  return &session_.device.find(session_.key("quant_tile", form_.key() + "/" + product.flags()), shape.rows,
                               shape.columns);
}

void QuantWeights::launch(const Kernel& kernel, Stream stream, const Product& product, void* y,
                          const Norms& norms) const {
  const ProductShape& shape = product.shape;
  const void* w = product.w.data;
  const Tiles tiles = tiles_of(session_, kernel, product, form_.step_columns());
  session_.device.launch(kernel, stream, tiles.grid, product.x.data, w, w, product.bias.data, y, tiles.partial,
                         tiles.counters, norms.squares, small(norms.tiles), norms.residual, norms.gain, norms.unit,
                         norms.total, norms.epsilon, small(shape.rows), small(shape.width), small(shape.columns),
                         small(form_.block_bytes()));
}

void QuantWeights::many(Stream stream, const Product& product, void* y) const {
  const ProductShape& shape = product.shape;
  const int64_t made = product.activation == "none" ? 0 : room(shape.rows * shape.height * 2);
  char* scratch = session_.device.scratch(static_cast<size_t>(made + shape.height * shape.columns * 2));
  const Kernel& kernel = session_.device.find(session_.key("dequantise", form_.key()));
  void* plain = scratch + made;
  session_.device.launch(kernel, stream, {up(shape.height, kBlockRows), form_.steps()}, product.w.data,
                         product.w.data, plain, small(shape.height), small(shape.columns), small(form_.block_bytes()));
  multiply_many(session_, stream, product, plain, y, scratch);
}

}  // namespace ortolan::cuda

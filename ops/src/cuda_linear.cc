#include "cuda_linear.h"

#include <algorithm>

#include "cuda_elementwise.h"

namespace ortolan::cuda {
namespace {

// Rows up to which the bundle's kernels are faster than cuBLAS.
constexpr int64_t kTileRows = 64;
// The same for quantised weights, which cuBLAS needs as float16 first.
constexpr int64_t kQuantTileRows = 128;
// Rows that shares of mean squares have room for (ROOM in ops/triton/few_rows.py).
constexpr int64_t kRoom = 32;
// The layout cuda-fragments (ops/cuda_layout.py): rows of a block, words of a row in one step.
constexpr int64_t kBlockRows = 64;
constexpr int64_t kStepWords = 32;

// The rest of a kernel's key: its result (same, float32, scaled or added), bias or not, activation.
std::string flags(const char* result, bool bias, const std::string& activation) {
  return std::string(result) + "/" + (bias ? "bias" : "plain") + "/" + activation;
}

const char* result_of(bool logits) { return logits ? "float32" : "same"; }

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
  const int64_t tiles = up(shape.width, kernel.constant("BLOCK_N"));
  const int64_t heights = up(shape.rows, kernel.constant("BLOCK_M"));
  const int64_t parts = parts_of(kernel, tiles, up(shape.columns, step_columns));
  if (parts == 1) return {{tiles, 1, heights}, session.device.scratch(0), session.device.counters(0)};
  const int64_t numbers = kernel.constant("BLOCK_N") * kernel.constant("BLOCK_M") * (gated ? 2 : 1);
  const auto bytes = static_cast<size_t>(tiles * heights * parts * numbers) * sizeof(float);
  return {{tiles, parts, heights}, session.device.scratch(bytes), session.device.counters(tiles * heights)};
}

void expect_half(const NodeInfo& node, const Session& session) {
  if (!session.half()) node.refuse("bits", "asks for quantised weights, whose kernels compute in float16 only.");
}

// One product with a quantised weight.
struct QuantProduct {
  Tensor x;
  Tensor w;
  Tensor bias;
  Shape shape;
  std::string activation;
};

QuantProduct product_of(const Call& call, const FragmentForm& form, const Tensor& bias, const std::string& activation) {
  const Tensor x = call.input(0, "x"), w = call.input(1, "weights");
  form.expect(call, w);
  return {x, w, bias, shape_of(call, x, form.rows, form.columns, bias, activation), activation};
}

std::string quant_key(const Session& session, const FragmentForm& form, const QuantProduct& product,
                      const char* result) {
  return session.key("quant_tile", form.key() + "/" + flags(result, product.bias.present, product.activation));
}

// What a product does about the norms around it (ops/triton/few_rows.py): squares are read behind one, a share of each
// tile for each row, or written before one; the rest is for that.
struct Norms {
  void* squares = nullptr;
  int64_t tiles = 0;
  const void* residual = nullptr;
  const void* gain = nullptr;
  const void* unit = nullptr;
  void* total = nullptr;
  float epsilon = 0;
};

// The norm that was left to a product; without shares x is normalised already.
Norms norm_before(const Call& call, const Tensor& squares, int64_t rows) {
  Norms norms;
  if (!squares.present || squares.count == 0) return norms;
  if (squares.shape.size() != 2 || squares.shape[1] != kRoom || rows > kRoom) {
    call.refuse("input squares has shape " + shape_text(squares.shape) + ", and x " + std::to_string(rows) +
                " rows. Give [tiles, " + std::to_string(kRoom) + "], and no tiles with more rows than that.");
  }
  norms.squares = squares.data;
  norms.tiles = squares.shape[0];
  return norms;
}

void launch_tile(const Session& session, const Call& call, const Kernel& kernel, const FragmentForm& form,
                 const QuantProduct& product, const Tensor& y, const Norms& norms) {
  const Shape& shape = product.shape;
  const Tiles tiles = tiles_of(session, kernel, shape, form.step_columns(), product.activation != "none");
  const void* w = product.w.data;
  session.device.launch(kernel, call.stream(), tiles.grid, product.x.data, w, w, product.bias.data, y.data,
                        tiles.partial, tiles.counters, norms.squares, small(norms.tiles), norms.residual, norms.gain,
                        norms.unit, norms.total, norms.epsilon, small(shape.rows), small(shape.width),
                        small(shape.columns), small(form.block_bytes()));
}

// By a kernel for as many rows as one serves, else by cuBLAS.
void multiply(const Session& session, const Call& call, const FragmentForm& form, const QuantProduct& product,
              const char* result, const Tensor& y, const Norms& norms) {
  const Shape& shape = product.shape;
  const Stream stream = call.stream();
  if (shape.rows <= kQuantTileRows) {
    const Kernel& kernel = session.device.find(quant_key(session, form, product, result), shape.rows, shape.columns);
    launch_tile(session, call, kernel, form, product, y, norms);
    return;
  }
  const int64_t made = product.activation == "none" ? 0 : room(shape.rows * shape.height * 2);
  char* scratch = session.device.scratch(static_cast<size_t>(made + shape.height * shape.columns * 2));
  const Kernel& kernel = session.device.find(session.key("dequantise", form.key()));
  void* plain = scratch + made;
  session.device.launch(kernel, stream, {up(shape.height, kBlockRows), form.steps()}, product.w.data, product.w.data,
                        plain, small(shape.height), small(shape.columns), small(form.block_bytes()));
  multiply_many(session, stream, product.x.data, plain, product.bias, y, scratch, shape.rows, shape.height,
                shape.columns, std::string(result) == "float32", product.activation);
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
  const std::string rest = flags(result_of(kLogits), bias.present, activation_);
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
  expect_half(node, session);
  if (activation_ != "none" && form_.rows % (2 * kBlockRows) != 0)
    node.refuse("rows", "must be a multiple of 128 with an activation.");
}

template <bool kLogits>
void QuantMatMul<kLogits>::compute(const Call& call) const {
  if (call.optional_input(2, "norm").present || call.optional_input(4, "residual").present)
    call.refuse("inputs norm and residual are for the target cpu.");
  const QuantProduct product = product_of(call, form_, call.optional_input(3, "bias"), activation_);
  const Norms norms = kLogits ? Norms{} : norm_before(call, call.optional_input(5, "squares"), product.shape.rows);
  const Tensor y = call.output(0, "y", {product.shape.rows, product.shape.width});
  const char* result = norms.tiles > 0 ? "scaled" : result_of(kLogits);
  if (y.count != 0) multiply(session_, call, form_, product, result, y, norms);
}

QuantMatMulAddRMSNorm::QuantMatMulAddRMSNorm(const NodeInfo& node, const Session& session)
    : session_(session), form_(node), epsilon_(node.real("epsilon", 1e-6f)) {
  expect_half(node, session);
}

void QuantMatMulAddRMSNorm::compute(const Call& call) const {
  const QuantProduct product = product_of(call, form_, call.optional_input(5, "bias"), "none");
  const Tensor residual = call.input(2, "residual"), gain = call.input(3, "gain"), unit = call.input(4, "unit");
  const int64_t rows = product.shape.rows;
  const ortolan::Shape shape{rows, form_.rows};
  if (residual.shape != shape || gain.shape != ortolan::Shape{form_.rows} || unit.count != 1) {
    call.refuse("inputs residual, gain and unit have shapes " + shape_text(residual.shape) + ", " +
                shape_text(gain.shape) + " and " + shape_text(unit.shape) + ", but the product has " +
                shape_text(shape) + ". Give as much, one value for each column, and one.");
  }
  const Tensor y = call.output(0, "y", shape), sum = call.output(1, "sum", shape);
  // A bundle packs such a kernel for as many rows as it saves time.
  const std::string key = quant_key(session_, form_, product, "added");
  const Kernel* kernel = rows <= kRoom ? session_.device.known(key, rows, form_.columns) : nullptr;
  const int64_t tiles = kernel && rows > 0 ? up(form_.rows, kernel->constant("BLOCK_N")) : 0;
  const Tensor squares = call.output(2, "squares", {tiles, kRoom});
  if (y.count == 0) return;
  if (kernel) {
    const Norms norms{squares.data, 0, residual.data, gain.data, unit.data, sum.data, epsilon_};
    launch_tile(session_, call, *kernel, form_, product, y, norms);
  } else {
    multiply(session_, call, form_, product, "same", y, {});
    // A row is read whole before it is written: its norm may lie where the product was.
    launch_add_rms_norm(session_, call, y, residual, gain, y, sum, epsilon_);
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

#include "cuda_linear.h"

#include "cuda_elementwise.h"

namespace ortolan::cuda {
namespace {

const char* result_of(bool logits) { return logits ? "float32" : "same"; }

// What scales a product whose x was not normalised: of no tiles where it was, or where there is no such input.
Norms scaling(const Call& call, const Tensor& squares, int64_t rows) {
  Norms norms;
  if (!squares.present || squares.count == 0) return norms;
  if (squares.shape.size() != 2 || squares.shape[1] != rows || rows > kDeferredRows) {
    call.refuse("input squares has shape " + shape_text(squares.shape) + ", but x has " + std::to_string(rows) +
                " rows. Give [tiles, rows], and none for more than " + std::to_string(kDeferredRows) + " rows.");
  }
  norms.squares = squares.data;
  norms.tiles = squares.shape[0];
  return norms;
}

// The product of a node as its kernel, or cuBLAS, makes it.
template <typename Weights>
void compute_product(const Call& call, const Weights& weights, const Product& product, const Tensor& squares) {
  const Tensor y = call.output(0, "y", {product.shape.rows, product.shape.width});
  if (y.count == 0) return;
  multiply(weights, call.stream(), product, y.data, scaling(call, squares, product.shape.rows));
}

}  // namespace

template <bool kLogits>
Linear<kLogits>::Linear(const NodeInfo& node, const Session& session)
    : activation_(node.text("activation", "none")), weights_(node, session, activation_) {}

template <bool kLogits>
void Linear<kLogits>::compute(const Call& call) const {
  const Product product =
      weights_.product(call, call.optional_input(2, "bias"), activation_, result_of(kLogits));
  compute_product(call, weights_, product, kLogits ? Tensor{} : call.optional_input(3, "squares"));
}

template <bool kLogits>
QuantMatMul<kLogits>::QuantMatMul(const NodeInfo& node, const Session& session)
    : activation_(node.text("activation", "none")), weights_(node, session, activation_) {}

template <bool kLogits>
void QuantMatMul<kLogits>::compute(const Call& call) const {
  if (call.optional_input(2, "norm").present || call.optional_input(4, "residual").present)
    call.refuse("inputs norm and residual are for the target cpu.");
  const Product product =
      weights_.product(call, call.optional_input(3, "bias"), activation_, result_of(kLogits));
  compute_product(call, weights_, product, kLogits ? Tensor{} : call.optional_input(5, "squares"));
}

template <typename Weights>
AddNorm<Weights>::AddNorm(const NodeInfo& node, const Session& session)
    : session_(session), weights_(node, session, "none"), epsilon_(node.real("epsilon", 1e-6f)) {}

template <typename Weights>
void AddNorm<Weights>::compute(const Call& call) const {
  const Tensor residual = call.input(2, "residual"), gain = call.input(3, "gain"), unit = call.optional_input(5, "unit");
  Product product = weights_.product(call, call.optional_input(4, "bias"), "none", "added");
  const ortolan::Shape shape{product.shape.rows, product.shape.width};
  if (residual.shape != shape) {
    call.refuse("input residual has shape " + shape_text(residual.shape) + ", but the product has " +
                shape_text(shape) + ".");
  }
  if (gain.shape != ortolan::Shape{product.shape.width}) {
    call.refuse("input gain has shape " + shape_text(gain.shape) + ", but the product has " +
                std::to_string(product.shape.width) + " columns.");
  }
  if (session_.half() != unit.present || (unit.present && unit.count != 1))
    call.refuse("input unit is one number, with float16 only.");
  const Tensor y = call.output(0, "y", shape), sum = call.output(1, "sum", shape);
  const Stream stream = call.stream();
  if (y.count != 0 && product.shape.rows <= kDeferredRows) {
    const Kernel& kernel = *weights_.kernel(product);
    const int64_t tiles = up(product.shape.width, kernel.constant("BLOCK_N"));
    const Tensor squares = call.output(2, "squares", {tiles, product.shape.rows});
    weights_.launch(kernel, stream, product, y.data,
                    {squares.data, 0, residual.data, gain.data, unit.data, sum.data, epsilon_});
    return;
  }
  call.output(2, "squares", {0, product.shape.rows});
  if (y.count == 0) return;
  product.result = "same";
  multiply(weights_, stream, product, y.data, {});
  // A row is read whole before it is written: its norm can lie where the product was.
  launch_add_rms_norm(session_, call, stream, y, residual, gain, y, sum, epsilon_);
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
template class AddNorm<DenseWeights>;
template class AddNorm<QuantWeights>;

}  // namespace ortolan::cuda

// Products of rows with weights, dense or in few bits: by a kernel of the bundle for as many rows as one serves, else
// by cuBLAS; and what they do about the norms around them (ops/triton/few_rows.py).
#pragma once

#include <string>

#include "cuda_session.h"

namespace ortolan::cuda {

// Rows up to which a product leaves the norm behind it to the next one: no more than any kernel of products serves.
// export/kernels/plan.py compiles for as many.
constexpr int64_t kDeferredRows = 64;

// Squares are read by a product behind a norm, or written by one before, [tiles, rows]; the rest is the latter's.
struct Norms {
  void* squares = nullptr;
  int64_t tiles = 0;
  const void* residual = nullptr;
  const void* gain = nullptr;
  const void* unit = nullptr;
  void* total = nullptr;
  float epsilon = 0;
};

struct ProductShape {
  int64_t rows;
  int64_t height;  // of W
  int64_t width;   // of y
  int64_t columns;
};

// y = activation(x . W^T + bias); result is the part of a kernel's key: same, float32, or added.
struct Product {
  Tensor x;
  Tensor w;
  Tensor bias;
  ProductShape shape;
  std::string activation;
  std::string result;

  // Refuses an x or a bias that does not fit W of `height` rows.
  Product(const Call& call, const Tensor& x, const Tensor& w, const Tensor& bias, int64_t height, int64_t columns,
          const std::string& activation, const char* result);
  // The part of a kernel's key that both kinds of weights share: the type of the result, bias or not, activation.
  std::string flags() const;
};

// Weights in 16 bits.
class DenseWeights {
 public:
  static constexpr const char* kAddNorm = "LinearAddRMSNorm";
  static constexpr abi::ElementType kType = abi::kActivation;

  DenseWeights(const NodeInfo& node, const Session& session, const std::string& activation);
  Product product(const Call& call, const Tensor& bias, const std::string& activation, const char* result) const;
  // Null for more rows than a kernel of the bundle serves.
  const Kernel* kernel(const Product& product) const;
  void launch(const Kernel& kernel, Stream stream, const Product& product, void* y, const Norms& norms) const;
  void many(Stream stream, const Product& product, void* y) const;

 private:
  const Session& session_;
};

// A weight in the layout cuda-fragments (ops/cuda_layout.py), as a node describes it.
struct FragmentForm {
  int64_t rows;
  int64_t columns;
  int64_t bits;
  int64_t group;
  bool minima;

  // Refuses a layout or a form that the GPU kernels do not read.
  explicit FragmentForm(const NodeInfo& node);
  // As kernels' keys name it.
  std::string key() const;
  int64_t step_columns() const;
  int64_t steps() const;
  int64_t block_bytes() const;
  // Refuses weights of another shape than this form has.
  void expect(const Call& call, const Tensor& weights) const;
};

// Weights in 4 or 8 bits, which for many rows are first made float16 again.
class QuantWeights {
 public:
  static constexpr const char* kAddNorm = "QuantMatMulAddRMSNorm";
  static constexpr abi::ElementType kType = abi::kUint8;

  QuantWeights(const NodeInfo& node, const Session& session, const std::string& activation);
  Product product(const Call& call, const Tensor& bias, const std::string& activation, const char* result) const;
  const Kernel* kernel(const Product& product) const;
  void launch(const Kernel& kernel, Stream stream, const Product& product, void* y, const Norms& norms) const;
  void many(Stream stream, const Product& product, void* y) const;

 private:
  const Session& session_;
  FragmentForm form_;
};

// By a kernel where there is one, else by `many`. x is scaled by norms.squares, if it has any.
template <typename Weights>
void multiply(const Weights& weights, Stream stream, const Product& product, void* y, const Norms& norms) {
  if (const Kernel* kernel = weights.kernel(product)) return weights.launch(*kernel, stream, product, y, norms);
  weights.many(stream, product, y);
}

}  // namespace ortolan::cuda

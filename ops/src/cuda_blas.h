// cuBLAS for products of many rows: the few functions that this library calls, found by dlopen.
#pragma once

#include "cuda_driver.h"

namespace ortolan::cuda {

enum class Type : int { kFloat32 = 0, kFloat16 = 2, kBfloat16 = 14 };  // cudaDataType_t

class Blas {
 public:
  // Throws Failure where cuBLAS is not installed. `workspace` stays the caller's; captured graphs rely on it.
  Blas(Stream stream, Address workspace, size_t workspace_bytes);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // y[rows, width] (+)= x[rows, columns] . w[width, columns]^T, summed in float32.
  void multiply(const void* x, const void* w, void* y, int rows, int width, int columns, Type in, Type out,
                bool add) const;

 private:
  void* handle_ = nullptr;
};

}  // namespace ortolan::cuda

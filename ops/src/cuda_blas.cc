#include "cuda_blas.h"

#include <dlfcn.h>

#include "failure.h"

namespace ortolan::cuda {
namespace {

using Handle = void*;

constexpr int kTranspose = 1, kPlain = 0, kComputeFloat32 = 68, kDefaultAlgorithm = -1;

// Functions of cuBLAS under their own names (cuBLAS library reference).
struct Library {
  int (*create)(Handle*);
  int (*destroy)(Handle);
  int (*set_stream)(Handle, Stream);
  int (*set_workspace)(Handle, void*, size_t);
  int (*gemm)(Handle, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int,
              const void*, void*, int, int, int, int);
};

template <typename F>
void find(void* library, const char* name, F*& target) {
  target = reinterpret_cast<F*>(dlsym(library, name));
  if (!target) throw Failure(std::string("cuBLAS lacks ") + name + ". Install the package nvidia-cublas.");
}

Library load() {
  void* library = nullptr;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12"}) {
    if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (!library) {
    throw Failure(std::string("cuBLAS cannot be loaded (") + dlerror() + "). Install the package nvidia-cublas.");
  }
  Library found{};
  find(library, "cublasCreate_v2", found.create);
  find(library, "cublasDestroy_v2", found.destroy);
  find(library, "cublasSetStream_v2", found.set_stream);
  find(library, "cublasSetWorkspace_v2", found.set_workspace);
  find(library, "cublasGemmEx", found.gemm);
  return found;
}

const Library& library() {
  static const Library found = load();
  return found;
}

void require(int status, const std::string& what) {
  if (status) throw Failure(what + ": cuBLAS status " + std::to_string(status) + ".");
}

}  // namespace

Blas::Blas(Stream stream, Address workspace, size_t workspace_bytes) {
  require(library().create(&handle_), "creating a cuBLAS handle");
  require(library().set_stream(handle_, stream), "setting cuBLAS's stream");
  // NOLINTNEXTLINE: the driver's addresses are numbers, cuBLAS's are pointers.
  require(library().set_workspace(handle_, reinterpret_cast<void*>(workspace), workspace_bytes),
          "setting cuBLAS's workspace");
}

Blas::~Blas() { library().destroy(handle_); }

void Blas::multiply(const void* x, const void* w, void* y, int rows, int width, int columns, Type in, Type out,
                    bool add) const {
  const float one = 1.0f, keep = add ? 1.0f : 0.0f;
  const int type = static_cast<int>(in);
  // In cuBLAS's column-major order row-major matrices are their own transposes.
  require(library().gemm(handle_, kTranspose, kPlain, width, rows, columns, &one, w, type, columns, x, type, columns,
                         &keep, y, static_cast<int>(out), width, kComputeFloat32, kDefaultAlgorithm),
          "multiplying " + std::to_string(rows) + " rows with " + std::to_string(width) + " x " +
              std::to_string(columns) + " weights");
}

}  // namespace ortolan::cuda

// What a CUDA session's kernels are made with: the device, and the one type of its activations and cache.
#pragma once

#include <string>

#include "cuda_device.h"
#include "custom_op.h"

namespace ortolan::cuda {

// An argument of a kernel.
inline int32_t small(int64_t value) { return static_cast<int32_t>(value); }

// How many units hold a value.
inline int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

// Bytes of scratch memory that take what follows to where any type may lie.
inline int64_t room(int64_t bytes) { return up(bytes, 256) * 256; }

struct Session {
  Device& device;
  abi::ElementType type;

  bool half() const { return type == abi::kFloat16; }
  const char* type_name() const { return half() ? "float16" : "bfloat16"; }
  Type blas_type() const { return half() ? Type::kFloat16 : Type::kBfloat16; }
  // The key of a kernel: its name, the type, and what else it was compiled for.
  std::string key(const std::string& name, const std::string& rest = "") const {
    return name + "/" + type_name() + (rest.empty() ? "" : "/" + rest);
  }
};

}  // namespace ortolan::cuda

namespace ortolan {

// Ports of the type kActivation are of the session's type.
template <>
struct Provider<cuda::Session> {
  static constexpr const char* kName = "CUDAExecutionProvider";
  static abi::ElementType type(const cuda::Session& session, abi::ElementType type) {
    return type == abi::kActivation ? session.type : type;
  }
};

}  // namespace ortolan

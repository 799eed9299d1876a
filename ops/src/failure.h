// The exception of this library: thrown by checks, turned into an ORT status at the border.
#pragma once

#include <stdexcept>
#include <string>

#include "ort_abi.h"

namespace ortolan {

// How a failure ends whose cause is that a bundle's kernels or weights are not what this version launches. Python
// tells such failures from all others by it: see ortolan_cuda_misfit.
inline constexpr char kMisfit[] = " The bundle and this version do not fit: export the model anew.";

class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& text, abi::ErrorCode code = abi::kInvalidArgument)
      : std::runtime_error(text), code_(code) {}
  abi::ErrorCode code() const { return code_; }

 private:
  abi::ErrorCode code_;
};

}  // namespace ortolan

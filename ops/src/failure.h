// The exception of this library: thrown by checks, turned into an ORT status at the border.
#pragma once

#include <stdexcept>
#include <string>

#include "ort_abi.h"

namespace ortolan {

class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& text, abi::ErrorCode code = abi::kInvalidArgument)
      : std::runtime_error(text), code_(code) {}
  abi::ErrorCode code() const { return code_; }

 private:
  abi::ErrorCode code_;
};

}  // namespace ortolan

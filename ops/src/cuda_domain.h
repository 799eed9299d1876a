// The operators of ai.ortolan for the CUDA provider.
#pragma once

#include <cstdint>
#include <string>

#include "ort_abi.h"

namespace ortolan {

constexpr const char* kDomainName = "ai.ortolan";

}  // namespace ortolan

namespace ortolan::cuda {

// The domain over an open device, for activations of a type (float16 or bfloat16). It lives as long as the process.
OrtCustomOpDomain* domain_of(const OrtApi* table, int64_t device, const std::string& type);

}  // namespace ortolan::cuda

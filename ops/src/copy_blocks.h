// cache[destination[i]] = cache[source[i]] for each i in order, whole blocks, in place.
#pragma once

#include <array>

#include "custom_op.h"

namespace ortolan {

template <abi::ElementType kCache>
class CopyBlocks {
 public:
  static constexpr const char* kName = "CopyBlocks";
  static constexpr std::array<Port, 3> kInputs{{{kCache}, {abi::kInt32}, {abi::kInt32}}};
  static constexpr std::array<Port, 1> kOutputs{{{kCache}}};
  static constexpr std::array<Alias, 1> kAliases{{{0, 0}}};

  CopyBlocks(const NodeInfo&, const Kernels&) {}
  void compute(const Call& call) const;
};

extern template class CopyBlocks<abi::kFloat>;
extern template class CopyBlocks<abi::kFloat16>;

}  // namespace ortolan

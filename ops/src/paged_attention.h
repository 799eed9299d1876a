// Attention of packed queries over a paged cache, with RoPE, q/k norm and the cache write inside.
#pragma once

#include <array>

#include "attention_inputs.h"
#include "custom_op.h"

namespace ortolan {

template <abi::ElementType kCache>
class PagedAttention {
 public:
  static constexpr const char* kName = "PagedAttention";
  static constexpr std::array<Port, 17> kInputs{{{abi::kFloat},          // q
                                                 {abi::kFloat, true},    // k
                                                 {abi::kFloat, true},    // v
                                                 {kCache},               // k_cache
                                                 {kCache},               // v_cache
                                                 {abi::kInt32},          // block_tables
                                                 {abi::kInt32},          // slot_mapping
                                                 {abi::kInt32},          // query_start
                                                 {abi::kInt32},          // seq_lens
                                                 {abi::kInt64},          // positions
                                                 {abi::kInt32},          // plan
                                                 {abi::kFloat, true},    // rope_table
                                                 {abi::kFloat, true},    // q_norm
                                                 {abi::kFloat, true},    // k_norm
                                                 {abi::kFloat, true},    // sinks
                                                 {abi::kFloat, true},    // k_scale
                                                 {abi::kFloat, true}}};  // v_scale
  static constexpr std::array<Port, 3> kOutputs{{{abi::kFloat}, {kCache}, {kCache}}};
  static constexpr std::array<Alias, 2> kAliases{{{3, 1}, {4, 2}}};

  PagedAttention(const NodeInfo& node, const Kernels& kernels) : attributes_(node), kernels_(kernels) {}
  void compute(const Call& call) const;

 private:
  AttentionAttributes attributes_;
  const Kernels& kernels_;
};

extern template class PagedAttention<abi::kFloat>;
extern template class PagedAttention<abi::kFloat16>;

}  // namespace ortolan

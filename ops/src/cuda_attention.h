// PagedAttention on a GPU: decode in pieces; preparation of prompts' tokens, and prefill.
#pragma once

#include <array>
#include <string>

#include "attention_inputs.h"
#include "cuda_session.h"

namespace ortolan::cuda {

class PagedAttention {
 public:
  static constexpr const char* kName = "PagedAttention";
  static constexpr std::array<Port, 17> kInputs{{{abi::kActivation},                   // q
                                                 {abi::kActivation, true},             // k
                                                 {abi::kActivation, true},             // v
                                                 {abi::kActivation},                   // k_cache
                                                 {abi::kActivation},                   // v_cache
                                                 {abi::kInt32},                        // block_tables
                                                 {abi::kInt32},                        // slot_mapping
                                                 {abi::kInt32},                        // query_start
                                                 {abi::kInt32},                        // seq_lens
                                                 {abi::kInt64},                        // positions
                                                 {abi::kInt32, false, true},           // plan, in host memory
                                                 {abi::kFloat, true},                  // rope_table
                                                 {abi::kFloat, true},                  // q_norm
                                                 {abi::kFloat, true},                  // k_norm
                                                 {abi::kFloat, true},                  // sinks
                                                 {abi::kFloat, true},                  // k_scale
                                                 {abi::kFloat, true}}};                // v_scale
  static constexpr std::array<Port, 3> kOutputs{{{abi::kActivation}, {abi::kActivation}, {abi::kActivation}}};
  static constexpr std::array<Alias, 2> kAliases{{{3, 1}, {4, 2}}};

  PagedAttention(const NodeInfo& node, const Session& session) : session_(session), attributes_(node) {}
  void compute(const Call& call) const;

 private:
  struct Inputs;
  // results, stats: bytes of the pieces' results, of which a single piece leaves none.
  struct Pieces {
    const Kernel* kernel;
    int64_t count, results, stats;
  };

  Inputs read(const Call& call) const;
  // What kernels of this node's shape are called: heads, dims, slots of a block, and what it makes use of.
  std::string shape_key(const Inputs& inputs) const;
  // The same of what is done to heads before attention.
  std::string heads_key(const Inputs& inputs) const;
  void prepare(const Inputs& inputs, Stream stream, void* turned) const;
  Pieces pieces_of(const Inputs& inputs) const;
  void decode(const Inputs& inputs, Stream stream, const Pieces& pieces, char* scratch, void* out) const;
  void prefill(const Inputs& inputs, Stream stream, const void* turned, void* out) const;

  const Session& session_;
  AttentionAttributes attributes_;
};

}  // namespace ortolan::cuda

// PagedAttention on a GPU: decode in pieces; preparation of prompts' tokens, and prefill.
#pragma once

#include <array>
#include <string>

#include "attention_inputs.h"
#include "cuda_session.h"

namespace ortolan::cuda {

// kInt8: the cache holds codes of 8 bits and a scale for each token and head (ops/triton/cache_rows.py).
template <bool kInt8>
class PagedAttention {
  static constexpr abi::ElementType kCache = kInt8 ? abi::kInt8 : abi::kActivation;

 public:
  static constexpr const char* kName = "PagedAttention";
  static constexpr std::array<Port, 17> kInputs{{{abi::kActivation},                   // q
                                                 {abi::kActivation, true},             // k
                                                 {abi::kActivation, true},             // v
                                                 {kCache},                             // k_cache
                                                 {kCache},                             // v_cache
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
  static constexpr std::array<Port, 5> kOutputs{{{abi::kActivation},     // out
                                                 {kCache},               // k_cache_out
                                                 {kCache},               // v_cache_out
                                                 {abi::kFloat, true},    // k_scale_out
                                                 {abi::kFloat, true}}};  // v_scale_out
  static constexpr auto kAliases = [] {
    if constexpr (kInt8) {
      return std::array<Alias, 4>{{{3, 1}, {4, 2}, {15, 3}, {16, 4}}};
    } else {
      return std::array<Alias, 2>{{{3, 1}, {4, 2}}};
    }
  }();

  PagedAttention(const NodeInfo& node, const Session& session) : session_(session), attributes_(node) {}
  void compute(const Call& call) const;

 private:
  struct Inputs;
  // results, stats: bytes of the pieces' results, of which a single piece leaves none.
  struct Pieces {
    const Kernel* kernel;
    int64_t count, results, stats;
  };
  // across: tiles of queries of the longest prompt; heads: parts that its heads are dealt out in; results, stats: as
  // above; merge: null for a single piece.
  struct Tiles {
    const Kernel *kernel, *merge;
    int64_t across, heads, pieces, results, stats;
  };

  Inputs read(const Call& call) const;
  // What kernels of this node's shape are called: heads, dims, slots of a block, and what it makes use of.
  std::string shape_key(const Inputs& inputs) const;
  // The same of what is done to heads before attention.
  std::string heads_key(const Inputs& inputs) const;
  void prepare(const Inputs& inputs, Stream stream, void* turned) const;
  Pieces pieces_of(const Inputs& inputs) const;
  void decode(const Inputs& inputs, Stream stream, const Pieces& pieces, char* scratch, void* out) const;
  Tiles tiles_of(const Inputs& inputs) const;
  void prefill(const Inputs& inputs, Stream stream, const Tiles& tiles, const void* turned, char* scratch,
               void* out) const;

  const Session& session_;
  AttentionAttributes attributes_;
};

extern template class PagedAttention<false>;
extern template class PagedAttention<true>;

}  // namespace ortolan::cuda

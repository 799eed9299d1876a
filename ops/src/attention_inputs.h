// What PagedAttention is given: attributes of the node and checked inputs of one call.
#pragma once

#include <cstdint>

#include "kernels.h"
#include "ort_api.h"

namespace ortolan {

// Heads longer than this are no model's; the bound keeps a head on a worker's stack.
constexpr int64_t kMaximumHeadDim = 1024;

struct AttentionAttributes {
  explicit AttentionAttributes(const NodeInfo& node);

  int heads;
  int kv_heads;
  float scale;
  int64_t window;
  float softcap;
  int rotary_dims;
  bool interleaved;
  float norm_epsilon;
  // Where they are initialisers of the graph, as they are in every exported one: they need not be read in each call.
  Tensor rope_table;
  Tensor q_norm;
  Tensor k_norm;
  Tensor sinks;
};

// Inputs whose shapes and numbers were all checked: no block, slot or table row lies outside its tensor. A query
// with index i of n in a sequence of length L stands at cache position L - n + i.
struct AttentionInputs {
  AttentionInputs(const Call& call, const AttentionAttributes& attributes);

  int64_t tokens = 0;       // T, padding included
  int64_t real_tokens = 0;  // the last of query_start
  int64_t sequences = 0;    // R, padding included
  int head_dim = 0;
  int value_dim = 0;
  int64_t blocks = 0;
  int64_t block_size = 0;
  int64_t table_width = 0;

  // Rows of q, k and v of token t start at q + t * q_stride, ...
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t q_stride = 0;
  int64_t k_stride = 0;
  int64_t v_stride = 0;

  Tensor k_cache;
  Tensor v_cache;
  const int32_t* block_tables = nullptr;
  const int32_t* slot_mapping = nullptr;
  const int32_t* query_start = nullptr;
  const int32_t* seq_lens = nullptr;
  const int64_t* positions = nullptr;
  const float* rope_table = nullptr;  // null without RoPE
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* sinks = nullptr;

 private:
  void read_cache(const Call& call, const AttentionAttributes& attributes);
  void read_rows(const Call& call, const AttentionAttributes& attributes);
  void read_extras(const Call& call, const AttentionAttributes& attributes);
  void read_batch(const Call& call, const AttentionAttributes& attributes);
  void check_sequence(const Call& call, const AttentionAttributes& attributes, int64_t sequence) const;
};

}  // namespace ortolan

// Computes one item of an attention plan, and merges the chunks of split tiles.
#pragma once

#include <cstddef>

#include "attention_plan.h"
#include "scratch.h"

namespace ortolan {

// Running softmax results of some rows: the highest score, the sum of exponentials, the weighted values.
struct AttentionPartial {
  float* maximum;
  float* total;
  float* sums;  // [rows, value_stride]

  AttentionPartial from(int64_t row, int value_stride) const {
    return {maximum + row, total + row, sums + row * value_stride};
  }
};

class AttentionWorker {
 public:
  // `out` is float32 [T, heads * value_dim]; `partials` has room for the plan's partial_rows.
  AttentionWorker(const AttentionInputs& inputs, const AttentionAttributes& attributes, const Kernels& kernels,
                  bool half_cache, AttentionPartial partials, float* out);

  static int padded(int dims, int width) { return (dims + width - 1) / width * width; }

  void run(const AttentionTile& tile, const AttentionItem& item) const;
  // Merges a split tile's chunks, once all its items have run.
  void merge(const AttentionTile& tile) const;

 private:
  // The keys of a chunk that a query sees: [first, last), offsets within the chunk.
  struct Range {
    int first;
    int last;
  };
  struct Rows;

  Range visible(const AttentionTile& tile, int row, int64_t chunk) const;
  void load_queries(const AttentionTile& tile, float* queries) const;
  void gather(const AttentionTile& tile, int64_t chunk, Rows& rows) const;
  // Whether rows of the cache must be padded to whole vectors.
  static bool copies(int dims, int stride) { return dims != stride; }
  void gather_rows(const Tensor& cache, int dims, int stride, int64_t slot, int kv_head, int first, int last,
                   std::byte* copy, const void** pointers) const;
  void attend(const AttentionTile& tile, int64_t chunk, Rows& rows, const AttentionPartial& into) const;
  void add_chunk(const AttentionTile& tile, int64_t chunk, const AttentionPartial& chunk_result,
                 const AttentionPartial& running, bool* started) const;
  void finish(const AttentionTile& tile, const AttentionPartial& result) const;

  const AttentionInputs& inputs_;
  const AttentionAttributes& attributes_;
  const Kernels& kernels_;
  const bool half_cache_;
  const int64_t number_bytes_;  // of one number in the cache
  const AttentionPartial partials_;
  float* const out_;
  const int head_stride_;
  const int value_stride_;
};

}  // namespace ortolan

// How the work of one attention call is cut into pieces.
//
// A tile is a few queries of one sequence and key head. A tile that is long beside the whole call is split into one
// item a chunk of its context, so that a single long sequence keeps all cores busy. None of this changes a result:
// every query merges the same chunks in the same order, whichever item computes them.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_inputs.h"

namespace ortolan {

struct AttentionTile {
  int64_t sequence;
  int kv_head;
  int first_head;  // of `heads` neighbouring query heads that share kv_head
  int heads;
  int64_t first_row;  // token row of the first of `queries` queries
  int queries;
  int64_t position;  // cache position of the first query
  int64_t first_chunk;
  int64_t last_chunk;  // one past the last
  int64_t partials;    // first of its chunks among all split tiles' partial results, -1 if not split

  int rows() const { return heads * queries; }
  int64_t chunks() const { return last_chunk - first_chunk; }
};

// The chunks [first_chunk, last_chunk) of one tile.
struct AttentionItem {
  int64_t tile;
  int64_t first_chunk;
  int64_t last_chunk;
};

struct AttentionPlan {
  AttentionPlan(const AttentionInputs& inputs, const AttentionAttributes& attributes);

  // Rows of a tile at most: enough to turn each key once for many queries, few enough to keep their scores in cache.
  static constexpr int kTileRows = 128;

  std::vector<AttentionTile> tiles;
  std::vector<AttentionItem> items;
  int64_t partial_rows = 0;     // rows of partial results over all split tiles
  int64_t multiplications = 0;  // of the whole call, about

 private:
  void add_sequence(const AttentionInputs& inputs, const AttentionAttributes& attributes, int64_t sequence);
  void make_items(int value_dim);
};

}  // namespace ortolan

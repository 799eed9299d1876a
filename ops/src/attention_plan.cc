#include "attention_plan.h"

#include <algorithm>

namespace ortolan {
namespace {

// A tile is split when it holds more than this fraction of all chunks; one of many rows, each of whose items prepares
// them anew, later.
constexpr int64_t kShares = 64, kLargeShares = 16;
constexpr int kManyRows = 16;

// Partial results of split tiles take no more floats than this (64 MB); tiles beyond stay whole.
constexpr int64_t kPartialFloats = int64_t{1} << 24;

}  // namespace

AttentionPlan::AttentionPlan(const AttentionInputs& inputs, const AttentionAttributes& attributes) {
  for (int64_t s = 0; s < inputs.sequences; ++s) add_sequence(inputs, attributes, s);
  make_items(inputs.value_dim);
}

void AttentionPlan::add_sequence(const AttentionInputs& inputs, const AttentionAttributes& attributes,
                                 int64_t sequence) {
  const int group = attributes.heads / attributes.kv_heads;
  const int tile_heads = std::min(group, kTileRows);
  // Whole fours of queries leave no remainder when rows are taken in fours.
  const int64_t fitting = kTileRows / tile_heads, tile_queries = fitting >= 4 ? fitting / 4 * 4 : fitting;
  const int64_t start = inputs.query_start[sequence];
  const int64_t queries = inputs.query_start[sequence + 1] - start;
  const int64_t first_position = inputs.seq_lens[sequence] - queries;
  // The last queries see most keys: they come first, so that threads end together.
  for (int64_t q = (queries - 1) / tile_queries * tile_queries; q >= 0 && queries > 0; q -= tile_queries) {
    const int count = static_cast<int>(std::min(tile_queries, queries - q));
    const int64_t position = first_position + q;
    const int64_t oldest = attributes.window > 0 ? std::max<int64_t>(0, position - attributes.window + 1) : 0;
    const int64_t first_chunk = oldest / kChunk, last_chunk = (position + count - 1) / kChunk + 1;
    for (int kv_head = 0; kv_head < attributes.kv_heads; ++kv_head) {
      for (int head = 0; head < group; head += tile_heads) {
        tiles.push_back({sequence, kv_head, kv_head * group + head, std::min(tile_heads, group - head), start + q,
                         count, position, first_chunk, last_chunk, -1});
        multiplications += tiles.back().rows() * (position + count - oldest) * (inputs.head_dim + inputs.value_dim);
      }
    }
  }
}

void AttentionPlan::make_items(int value_dim) {
  int64_t chunks = 0;
  for (const AttentionTile& tile : tiles) chunks += tile.chunks();
  for (size_t t = 0; t < tiles.size(); ++t) {
    AttentionTile& tile = tiles[t];
    const int64_t rows = tile.chunks() * tile.rows();
    const int64_t share = std::max<int64_t>(1, chunks / (tile.rows() > kManyRows ? kLargeShares : kShares));
    if (tile.chunks() <= share || (partial_rows + rows) * value_dim > kPartialFloats) {
      items.push_back({static_cast<int64_t>(t), tile.first_chunk, tile.last_chunk});
      continue;
    }
    tile.partials = partial_rows;
    partial_rows += rows;
    for (int64_t c = tile.first_chunk; c < tile.last_chunk; ++c)
      items.push_back({static_cast<int64_t>(t), c, c + 1});
  }
}

}  // namespace ortolan

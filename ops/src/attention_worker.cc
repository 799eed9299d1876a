#include "attention_worker.h"

#include <algorithm>
#include <cstring>

namespace ortolan {

// One worker's buffers for a tile.
struct AttentionWorker::Rows {
  float* queries;
  float* scores;
  float* panel;
  float* wide_values;
  std::byte* key_copies;  // chunk rows padded to whole vectors; unused where the cache's own are such
  std::byte* value_copies;
  const void* key[kChunk];
  const void* value[kChunk];
  int first[AttentionPlan::kTileRows];
  int last[AttentionPlan::kTileRows];
};

AttentionWorker::AttentionWorker(const AttentionInputs& inputs, const AttentionAttributes& attributes,
                                 const Kernels& kernels, bool half_cache, AttentionPartial partials, float* out)
    : inputs_(inputs),
      attributes_(attributes),
      kernels_(kernels),
      half_cache_(half_cache),
      number_bytes_(half_cache ? sizeof(uint16_t) : sizeof(float)),
      partials_(partials),
      out_(out),
      head_stride_(padded(inputs.head_dim, kernels.width)),
      value_stride_(padded(inputs.value_dim, kernels.width)) {}

void AttentionWorker::run(const AttentionTile& tile, const AttentionItem& item) const {
  const auto rows = static_cast<size_t>(tile.rows());
  const size_t query_floats = rows * head_stride_, sum_floats = rows * value_stride_;
  const size_t panel_floats = 2 * static_cast<size_t>(kernels_.width) * head_stride_;
  const size_t wide_floats = half_cache_ ? size_t{kChunk} * value_stride_ : 0;
  const size_t key_floats = copies(inputs_.head_dim, head_stride_) ? size_t{kChunk} * head_stride_ : 0;
  const size_t value_floats = copies(inputs_.value_dim, value_stride_) ? size_t{kChunk} * value_stride_ : 0;
  Scratch scratch(Scratch::room(query_floats) + Scratch::room(rows * kChunk) + Scratch::room(panel_floats) +
                  Scratch::room(wide_floats) + Scratch::room(key_floats) + Scratch::room(value_floats) +
                  2 * (2 * Scratch::room(rows) + Scratch::room(sum_floats)));
  Rows buffers;
  buffers.queries = scratch.take(query_floats);
  buffers.scores = scratch.take(rows * kChunk);
  buffers.panel = scratch.take(panel_floats);
  buffers.wide_values = scratch.take(wide_floats);
  buffers.key_copies = reinterpret_cast<std::byte*>(scratch.take(key_floats));
  buffers.value_copies = reinterpret_cast<std::byte*>(scratch.take(value_floats));
  load_queries(tile, buffers.queries);

  if (tile.partials >= 0) {
    for (int64_t chunk = item.first_chunk; chunk < item.last_chunk; ++chunk) {
      const int64_t row = tile.partials + (chunk - tile.first_chunk) * tile.rows();
      attend(tile, chunk, buffers, partials_.from(row, value_stride_));
    }
    return;
  }
  const AttentionPartial running{scratch.take(rows), scratch.take(rows), scratch.take(sum_floats)};
  if (item.last_chunk - item.first_chunk == 1) {
    attend(tile, item.first_chunk, buffers, running);
    return finish(tile, running);
  }
  const AttentionPartial latest{scratch.take(rows), scratch.take(rows), scratch.take(sum_floats)};
  bool started[AttentionPlan::kTileRows] = {};
  for (int64_t chunk = item.first_chunk; chunk < item.last_chunk; ++chunk) {
    attend(tile, chunk, buffers, latest);
    add_chunk(tile, chunk, latest, running, started);
  }
  finish(tile, running);
}

void AttentionWorker::merge(const AttentionTile& tile) const {
  const auto rows = static_cast<size_t>(tile.rows());
  Scratch scratch(2 * Scratch::room(rows) + Scratch::room(rows * value_stride_));
  const AttentionPartial running{scratch.take(rows), scratch.take(rows), scratch.take(rows * value_stride_)};
  bool started[AttentionPlan::kTileRows] = {};
  for (int64_t chunk = tile.first_chunk; chunk < tile.last_chunk; ++chunk) {
    const int64_t row = tile.partials + (chunk - tile.first_chunk) * tile.rows();
    add_chunk(tile, chunk, partials_.from(row, value_stride_), running, started);
  }
  finish(tile, running);
}

AttentionWorker::Range AttentionWorker::visible(const AttentionTile& tile, int row, int64_t chunk) const {
  const int64_t position = tile.position + row / tile.heads, start = chunk * kChunk;
  const int64_t oldest = attributes_.window > 0 ? std::max<int64_t>(0, position - attributes_.window + 1) : 0;
  return {static_cast<int>(std::clamp<int64_t>(oldest - start, 0, kChunk)),
          static_cast<int>(std::clamp<int64_t>(position + 1 - start, 0, kChunk))};
}

void AttentionWorker::load_queries(const AttentionTile& tile, float* queries) const {
  HeadTransform how{inputs_.q_norm,          attributes_.norm_epsilon, nullptr,          nullptr,
                    attributes_.rotary_dims, attributes_.interleaved,  attributes_.scale * kInverseLn2};
  for (int row = 0; row < tile.rows(); ++row) {
    const int64_t token = tile.first_row + row / tile.heads;
    if (inputs_.rope_table) {
      how.cosine = inputs_.rope_table + inputs_.positions[token] * attributes_.rotary_dims;
      how.sine = how.cosine + attributes_.rotary_dims / 2;
    }
    const int64_t head = tile.first_head + row % tile.heads;
    float* target = queries + static_cast<int64_t>(row) * head_stride_;
    kernels_.transform_head(how, inputs_.q + token * inputs_.q_stride + head * inputs_.head_dim, target,
                            inputs_.head_dim);
    std::fill(target + inputs_.head_dim, target + head_stride_, 0.0f);
  }
}

// Pointers to the rows of positions [first, last) of a chunk, which lie in one block from `slot` on.
void AttentionWorker::gather_rows(const Tensor& cache, int dims, int stride, int64_t slot, int kv_head, int first,
                                  int last, std::byte* copy, const void** pointers) const {
  const int64_t row_bytes = dims * number_bytes_, step = attributes_.kv_heads * row_bytes;
  const std::byte* row = cache.as<const std::byte>() + slot * step + kv_head * row_bytes;
  for (int j = first; j < last; ++j, row += step) {
    if (!copies(dims, stride)) {
      pointers[j] = row;
      continue;
    }
    std::byte* target = copy + static_cast<int64_t>(j) * stride * number_bytes_;
    std::memcpy(target, row, static_cast<size_t>(row_bytes));
    std::memset(target + row_bytes, 0, static_cast<size_t>((stride - dims) * number_bytes_));
    pointers[j] = target;
  }
}

void AttentionWorker::gather(const AttentionTile& tile, int64_t chunk, Rows& buffers) const {
  int begin = kChunk, end = 0;
  for (int row = 0; row < tile.rows(); ++row) {
    const Range range = visible(tile, row, chunk);
    buffers.first[row] = range.first;
    buffers.last[row] = range.last;
    if (range.first >= range.last) continue;
    begin = std::min(begin, range.first);
    end = std::max(end, range.last);
  }
  const int32_t* table = inputs_.block_tables + tile.sequence * inputs_.table_width;
  for (int j = begin; j < end;) {
    const int64_t position = chunk * kChunk + j, offset = position % inputs_.block_size;
    const int64_t slot = table[position / inputs_.block_size] * inputs_.block_size + offset;
    const int next = static_cast<int>(std::min<int64_t>(end, j + inputs_.block_size - offset));
    gather_rows(inputs_.k_cache, inputs_.head_dim, head_stride_, slot, tile.kv_head, j, next, buffers.key_copies,
                buffers.key);
    gather_rows(inputs_.v_cache, inputs_.value_dim, value_stride_, slot, tile.kv_head, j, next,
                buffers.value_copies, buffers.value);
    j = next;
  }
}

void AttentionWorker::attend(const AttentionTile& tile, int64_t chunk, Rows& rows,
                             const AttentionPartial& into) const {
  gather(tile, chunk, rows);
  kernels_.attend_chunk({tile.rows(), half_cache_, rows.queries, head_stride_, value_stride_, rows.key, rows.value,
                         rows.first, rows.last, attributes_.softcap * kInverseLn2, rows.scores, rows.panel, rows.wide_values,
                         into.maximum, into.total, into.sums});
}

void AttentionWorker::add_chunk(const AttentionTile& tile, int64_t chunk, const AttentionPartial& chunk_result,
                                const AttentionPartial& running, bool* started) const {
  for (int row = 0; row < tile.rows(); ++row) {
    const Range range = visible(tile, row, chunk);
    if (range.first >= range.last) continue;
    const AttentionPartial from = chunk_result.from(row, value_stride_), to = running.from(row, value_stride_);
    if (started[row]) {
      kernels_.merge(to.maximum, to.total, to.sums, *from.maximum, *from.total, from.sums, value_stride_);
      continue;
    }
    *to.maximum = *from.maximum;
    *to.total = *from.total;
    std::memcpy(to.sums, from.sums, static_cast<size_t>(value_stride_) * sizeof(float));
    started[row] = true;
  }
}

void AttentionWorker::finish(const AttentionTile& tile, const AttentionPartial& result) const {
  for (int row = 0; row < tile.rows(); ++row) {
    const int64_t token = tile.first_row + row / tile.heads;
    const int head = tile.first_head + row % tile.heads;
    float* target = out_ + (token * attributes_.heads + head) * inputs_.value_dim;
    const AttentionPartial of_row = result.from(row, value_stride_);
    kernels_.finish(*of_row.maximum, *of_row.total, of_row.sums, inputs_.sinks ? inputs_.sinks + head : nullptr,
                    target, inputs_.value_dim);
  }
}

}  // namespace ortolan

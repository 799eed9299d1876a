#include "attention_worker.h"

#include <algorithm>
#include <cstring>

namespace ortolan {

// One worker's buffers for a tile.
struct AttentionWorker::Rows {
  float* queries;
  float* scores;
  float* key_copies;  // chunk rows in float32, padded; unused where the cache can be read directly
  float* value_copies;
  const float* key[kChunk];
  const float* value[kChunk];
  int first[AttentionPlan::kTileRows];
  int last[AttentionPlan::kTileRows];
};

AttentionWorker::AttentionWorker(const AttentionInputs& inputs, const AttentionAttributes& attributes,
                                 const Kernels& kernels, bool half_cache, AttentionPartial partials, float* out)
    : inputs_(inputs),
      attributes_(attributes),
      kernels_(kernels),
      half_cache_(half_cache),
      partials_(partials),
      out_(out),
      head_stride_(padded(inputs.head_dim, kernels.width)),
      value_stride_(padded(inputs.value_dim, kernels.width)) {}

void AttentionWorker::run(const AttentionTile& tile, const AttentionItem& item) const {
  const auto rows = static_cast<size_t>(tile.rows());
  const size_t query_floats = rows * head_stride_, sum_floats = rows * value_stride_;
  const size_t key_floats = size_t{kChunk} * head_stride_, value_floats = size_t{kChunk} * value_stride_;
  Scratch scratch(Scratch::room(query_floats) + Scratch::room(rows * kChunk) + Scratch::room(key_floats) +
                  Scratch::room(value_floats) + 2 * (2 * Scratch::room(rows) + Scratch::room(sum_floats)));
  Rows buffers;
  buffers.queries = scratch.take(query_floats);
  buffers.scores = scratch.take(rows * kChunk);
  buffers.key_copies = scratch.take(key_floats);
  buffers.value_copies = scratch.take(value_floats);
  load_queries(tile, buffers.queries);

  if (tile.partials >= 0) {
    for (int64_t chunk = item.first_chunk; chunk < item.last_chunk; ++chunk) {
      const int64_t row = tile.partials + (chunk - tile.first_chunk) * tile.rows();
      attend(tile, chunk, buffers, partials_.from(row, value_stride_));
    }
    return;
  }
  const AttentionPartial running{scratch.take(rows), scratch.take(rows), scratch.take(sum_floats)};
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
                    attributes_.rotary_dims, attributes_.interleaved,  attributes_.scale};
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

void AttentionWorker::gather_rows(const Tensor& cache, int dims, int stride, int64_t slot, int kv_head, int index,
                                  float* copies, const float** pointers) const {
  const int64_t offset = (slot * attributes_.kv_heads + kv_head) * dims;
  if (!half_cache_ && dims == stride) {
    pointers[index] = cache.as<float>() + offset;
    return;
  }
  float* copy = copies + static_cast<int64_t>(index) * stride;
  if (half_cache_) {
    kernels_.to_float(cache.as<uint16_t>() + offset, copy, dims);
  } else {
    std::memcpy(copy, cache.as<float>() + offset, static_cast<size_t>(dims) * sizeof(float));
  }
  std::fill(copy + dims, copy + stride, 0.0f);
  pointers[index] = copy;
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
  for (int j = begin; j < end; ++j) {
    const int64_t position = chunk * kChunk + j;
    const int64_t slot = table[position / inputs_.block_size] * inputs_.block_size + position % inputs_.block_size;
    gather_rows(inputs_.k_cache, inputs_.head_dim, head_stride_, slot, tile.kv_head, j, buffers.key_copies,
                buffers.key);
    gather_rows(inputs_.v_cache, inputs_.value_dim, value_stride_, slot, tile.kv_head, j, buffers.value_copies,
                buffers.value);
  }
}

void AttentionWorker::attend(const AttentionTile& tile, int64_t chunk, Rows& rows,
                             const AttentionPartial& into) const {
  gather(tile, chunk, rows);
  kernels_.attend_chunk({tile.rows(), rows.queries, head_stride_, value_stride_, rows.key, rows.value, rows.first,
                         rows.last, attributes_.softcap, rows.scores, into.maximum, into.total, into.sums});
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

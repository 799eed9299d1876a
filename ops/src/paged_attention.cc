#include "paged_attention.h"

#include <algorithm>
#include <cstring>

#include "attention_worker.h"

namespace ortolan {
namespace {

// Floats that one task writes to the cache; below this a second thread costs more than it saves.
constexpr int64_t kWriteSize = 8192;

// Multiplications below which one thread is faster than several.
constexpr int64_t kWorthSharing = 65536;

// Norms, turns and stores this step's keys, stores its values.
void write_cache(const Call& call, const AttentionInputs& inputs, const AttentionAttributes& attributes,
                 const Kernels& kernels, bool half_cache) {
  const int64_t token_floats = int64_t{attributes.kv_heads} * (inputs.head_dim + inputs.value_dim);
  const int64_t at_once = std::max<int64_t>(1, kWriteSize / token_floats);
  const auto store = [&](const Tensor& cache, int64_t offset, const float* row, int dims) {
    if (half_cache) return kernels.to_half(row, cache.as<uint16_t>() + offset, dims);
    std::memcpy(cache.as<float>() + offset, row, static_cast<size_t>(dims) * sizeof(float));
  };
  const auto write_token = [&](int64_t token) {
    const int64_t slot = inputs.slot_mapping[token];
    if (slot < 0) return;
    HeadTransform how{inputs.k_norm,          attributes.norm_epsilon, nullptr, nullptr,
                      attributes.rotary_dims, attributes.interleaved,  1.0f};
    if (inputs.rope_table) {
      how.cosine = inputs.rope_table + inputs.positions[token] * attributes.rotary_dims;
      how.sine = how.cosine + attributes.rotary_dims / 2;
    }
    float turned[kMaximumHeadDim];
    for (int64_t head = 0; head < attributes.kv_heads; ++head) {
      const int64_t row = slot * attributes.kv_heads + head;
      kernels.transform_head(how, inputs.k + token * inputs.k_stride + head * inputs.head_dim, turned,
                             inputs.head_dim);
      store(inputs.k_cache, row * inputs.head_dim, turned, inputs.head_dim);
      store(inputs.v_cache, row * inputs.value_dim, inputs.v + token * inputs.v_stride + head * inputs.value_dim,
            inputs.value_dim);
    }
  };
  call.parallel_for(static_cast<size_t>((inputs.real_tokens + at_once - 1) / at_once), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * at_once;
    for (int64_t t = first; t < std::min(inputs.real_tokens, first + at_once); ++t) write_token(t);
  });
}

}  // namespace

template <abi::ElementType kCache>
void PagedAttention<kCache>::compute(const Call& call) const {
  constexpr bool kHalf = kCache == abi::kFloat16;
  const AttentionInputs inputs(call, attributes_);
  const int64_t width = int64_t{attributes_.heads} * inputs.value_dim;
  const Tensor out = call.output(0, "out", {inputs.tokens, width});
  call.in_place(1, "k_cache_out", inputs.k_cache);
  call.in_place(2, "v_cache_out", inputs.v_cache);
  std::fill(out.as<float>() + inputs.real_tokens * width, out.as<float>() + out.count, 0.0f);
  if (inputs.real_tokens == 0) return;
  write_cache(call, inputs, attributes_, kernels_, kHalf);

  const AttentionPlan plan(inputs, attributes_);
  const auto partial_rows = static_cast<size_t>(plan.partial_rows);
  const auto value_stride = static_cast<size_t>(AttentionWorker::padded(inputs.value_dim, kernels_.width));
  Scratch scratch(2 * Scratch::room(partial_rows) + Scratch::room(partial_rows * value_stride));
  const AttentionPartial partials{scratch.take(partial_rows), scratch.take(partial_rows),
                                  scratch.take(partial_rows * value_stride)};
  const AttentionWorker worker(inputs, attributes_, kernels_, kHalf, partials, out.as<float>());
  const bool share = plan.multiplications >= kWorthSharing;
  call.for_each(plan.items.size(), share,
                [&](size_t i) { worker.run(plan.tiles[static_cast<size_t>(plan.items[i].tile)], plan.items[i]); });
  if (plan.partial_rows == 0) return;
  call.for_each(plan.tiles.size(), share, [&](size_t t) {
    if (plan.tiles[t].partials >= 0) worker.merge(plan.tiles[t]);
  });
}

template class PagedAttention<abi::kFloat>;
template class PagedAttention<abi::kFloat16>;

}  // namespace ortolan

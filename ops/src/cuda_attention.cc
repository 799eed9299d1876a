#include "cuda_attention.h"

#include <algorithm>

namespace ortolan::cuda {
namespace {

void expect(const Call& call, const Tensor& tensor, const char* name, const Shape& shape) {
  if (tensor.shape == shape) return;
  call.refuse(std::string("input ") + name + " has shape " + shape_text(tensor.shape) +
              ", but the other inputs ask for " + shape_text(shape) + ".");
}

}  // namespace

// Shapes and pointers of one call. What lies in device memory is not looked at: the engine wrote it.
template <bool kInt8>
struct PagedAttention<kInt8>::Inputs {
  int64_t tokens, sequences, table_width, block_size, head_dim, value_dim;
  int64_t decodes, prompts, longest_query, longest_context;
  const char *q, *k, *v;
  int64_t q_stride, k_stride, v_stride;
  Tensor k_cache, v_cache, k_scale, v_scale, block_tables, slot_mapping, query_start, seq_lens, positions, rope_table,
      q_norm, k_norm, sinks;
};

template <bool kInt8>
typename PagedAttention<kInt8>::Inputs PagedAttention<kInt8>::read(const Call& call) const {
  Inputs in{};
  const Tensor q = call.input(0, "q"), k = call.optional_input(1, "k"), v = call.optional_input(2, "v");
  in.k_cache = call.input(3, "k_cache");
  in.v_cache = call.input(4, "v_cache");
  in.block_tables = call.input(5, "block_tables");
  in.slot_mapping = call.input(6, "slot_mapping");
  in.query_start = call.input(7, "query_start");
  in.seq_lens = call.input(8, "seq_lens");
  in.positions = call.input(9, "positions");
  const Tensor plan = call.input(10, "plan");
  in.rope_table = call.optional_input(11, "rope_table");
  in.q_norm = call.optional_input(12, "q_norm");
  in.k_norm = call.optional_input(13, "k_norm");
  in.sinks = call.optional_input(14, "sinks");
  in.k_scale = call.optional_input(15, "k_scale");
  in.v_scale = call.optional_input(16, "v_scale");
  if (in.k_scale.present != kInt8 || in.v_scale.present != kInt8)
    call.refuse("inputs k_scale and v_scale go with a cache of int8, and with no other.");
  if (in.k_cache.shape.size() != 4 || in.v_cache.shape.size() != 4 || in.k_cache.shape[2] != attributes_.kv_heads ||
      !std::equal(in.v_cache.shape.data(), in.v_cache.shape.data() + 3, in.k_cache.shape.data())) {
    call.refuse("inputs k_cache and v_cache have shapes " + shape_text(in.k_cache.shape) + " and " +
                shape_text(in.v_cache.shape) + ". Give [blocks, block_size, " + std::to_string(attributes_.kv_heads) +
                ", dims], alike but for the dims.");
  }
  if (q.shape.size() != 2 || in.block_tables.shape.size() != 2 || k.present != v.present)
    call.refuse("inputs q and block_tables are matrices, and k and v go together.");
  if (kInt8) {
    const Shape scales{in.k_cache.shape[0], in.k_cache.shape[1], in.k_cache.shape[2]};
    expect(call, in.k_scale, "k_scale", scales);
    expect(call, in.v_scale, "v_scale", scales);
  }
  in.tokens = q.shape[0];
  in.sequences = in.block_tables.shape[0];
  in.table_width = in.block_tables.shape[1];
  in.block_size = in.k_cache.shape[1];
  in.head_dim = in.k_cache.shape[3];
  in.value_dim = in.v_cache.shape[3];
  const int64_t q_width = attributes_.heads * in.head_dim, k_width = attributes_.kv_heads * in.head_dim,
                v_width = attributes_.kv_heads * in.value_dim;
  in.q = q.as<char>();
  if (k.present) {
    expect(call, q, "q", {in.tokens, q_width});
    expect(call, k, "k", {in.tokens, k_width});
    expect(call, v, "v", {in.tokens, v_width});
    in.k = k.as<char>();
    in.v = v.as<char>();
    in.q_stride = q_width;
    in.k_stride = k_width;
    in.v_stride = v_width;
  } else {
    expect(call, q, "q", {in.tokens, q_width + k_width + v_width});
    in.k = in.q + 2 * q_width;
    in.v = in.k + 2 * k_width;
    in.q_stride = in.k_stride = in.v_stride = q_width + k_width + v_width;
  }
  expect(call, in.slot_mapping, "slot_mapping", {in.tokens});
  expect(call, in.positions, "positions", {in.tokens});
  expect(call, in.query_start, "query_start", {in.sequences + 1});
  expect(call, in.seq_lens, "seq_lens", {in.sequences});
  expect(call, plan, "plan", {6});
  if (in.rope_table.present) {
    if (in.rope_table.shape.size() != 2 || in.rope_table.shape[1] != attributes_.rotary_dims)
      call.refuse("input rope_table has shape " + shape_text(in.rope_table.shape) + ". Give [positions, " +
                  std::to_string(attributes_.rotary_dims) + "].");
  } else if (attributes_.rotary_dims > 0) {
    call.refuse("input rope_table is missing, but attribute rotary_dims is not 0. Give the table.");
  }
  const int32_t* numbers = plan.as<int32_t>();
  in.decodes = numbers[0];
  in.prompts = numbers[1];
  in.longest_query = numbers[2];
  in.longest_context = numbers[3];
  if (in.decodes < 0 || in.prompts < 0 || in.decodes + in.prompts > in.sequences || in.decodes > in.tokens)
    call.refuse("input plan names " + std::to_string(in.decodes) + " decode rows and " + std::to_string(in.prompts) +
                " prompts for " + std::to_string(in.sequences) + " sequences.");
  return in;
}

template <bool kInt8>
std::string PagedAttention<kInt8>::shape_key(const Inputs& in) const {
  std::string key = std::to_string(attributes_.heads) + "." + std::to_string(attributes_.kv_heads) + "." +
                    std::to_string(in.head_dim) + "." + std::to_string(in.value_dim) + "." +
                    std::to_string(in.block_size);
  if (attributes_.window > 0) key += ".window";
  if (attributes_.softcap > 0.0f) key += ".softcap";
  if (in.sinks.present) key += ".sinks";
  if (kInt8) key += ".int8";
  return key;
}

template <bool kInt8>
void PagedAttention<kInt8>::compute(const Call& call) const {
  const Inputs in = read(call);
  const Tensor out = call.output(0, "out", {in.tokens, attributes_.heads * in.value_dim});
  call.in_place(1, "k_cache_out", in.k_cache);
  call.in_place(2, "v_cache_out", in.v_cache);
  if constexpr (kInt8) {
    call.in_place(3, "k_scale_out", in.k_scale);
    call.in_place(4, "v_scale_out", in.v_scale);
  }
  if (in.tokens == 0) return;
  const Stream stream = call.stream();
  const int64_t turned = in.prompts > 0 ? room(in.tokens * attributes_.heads * in.head_dim * 2) : 0;
  const Pieces pieces = in.decodes > 0 ? pieces_of(in) : Pieces{};
  const Tiles tiles = in.prompts > 0 ? tiles_of(in) : Tiles{};
  const int64_t decoding = turned + pieces.results + pieces.stats;
  char* scratch = session_.device.scratch(static_cast<size_t>(decoding + tiles.results + tiles.stats));
  if (in.prompts > 0) prepare(in, stream, scratch);
  if (in.decodes > 0) decode(in, stream, pieces, scratch + turned, out.data);
  if (in.prompts > 0) prefill(in, stream, tiles, scratch, scratch + decoding, out.data);
}

// How a decode step is split, and what the pieces' results take.
template <bool kInt8>
typename PagedAttention<kInt8>::Pieces PagedAttention<kInt8>::pieces_of(const Inputs& in) const {
  const Kernel& kernel = session_.device.find(session_.key("attention_decode", shape_key(in) + heads_key(in)),
                                              in.decodes);
  const int64_t count = std::min<int64_t>(kernel.constant("PIECES"),
                                          up(std::max<int64_t>(1, in.longest_context), kernel.constant("PIECE")));
  if (count == 1) return {&kernel, 1, 0, 0};
  const int64_t parts = in.decodes * attributes_.heads * count;
  return {&kernel, count, room(parts * in.value_dim * 4), room(parts * 2 * 4)};
}

template <bool kInt8>
std::string PagedAttention<kInt8>::heads_key(const Inputs& in) const {
  std::string key = "." + std::to_string(attributes_.rotary_dims);
  if (attributes_.interleaved) key += ".interleaved";
  if (in.q_norm.present) key += ".q_norm";
  if (in.k_norm.present) key += ".k_norm";
  return key;
}

template <bool kInt8>
void PagedAttention<kInt8>::prepare(const Inputs& in, Stream stream, void* turned) const {
  const std::string key = std::to_string(attributes_.heads) + "." + std::to_string(attributes_.kv_heads) + "." +
                          std::to_string(in.head_dim) + "." + std::to_string(in.value_dim) +
                          (kInt8 ? ".int8" : "") + heads_key(in);
  const Kernel& kernel = session_.device.find(session_.key("attention_prepare", key));
  const int64_t chunk = kernel.constant("CHUNK");
  const int64_t chunks = up(attributes_.heads, chunk) + up(attributes_.kv_heads, chunk);
  session_.device.launch(kernel, stream, {in.tokens - in.decodes, chunks}, in.q, in.k, in.v, turned, in.k_cache.data,
                         in.v_cache.data, in.k_scale.data, in.v_scale.data, in.slot_mapping.data, in.positions.data,
                         in.rope_table.data, in.q_norm.data, in.k_norm.data, small(in.q_stride), small(in.k_stride),
                         small(in.v_stride), attributes_.norm_epsilon, small(in.decodes));
}

template <bool kInt8>
void PagedAttention<kInt8>::decode(const Inputs& in, Stream stream, const Pieces& pieces, char* scratch,
                                   void* out) const {
  int32_t* counters = session_.device.counters(pieces.count == 1 ? 0 : in.decodes * attributes_.kv_heads);
  session_.device.launch(*pieces.kernel, stream, {in.decodes, attributes_.kv_heads, pieces.count}, in.q, in.k, in.v,
                         in.k_cache.data, in.v_cache.data, in.k_scale.data, in.v_scale.data, in.block_tables.data,
                         in.slot_mapping.data, in.seq_lens.data, in.positions.data, in.rope_table.data, in.q_norm.data,
                         in.k_norm.data, in.sinks.data, out, scratch, scratch + pieces.results, counters,
                         small(in.q_stride), small(in.k_stride), small(in.v_stride), attributes_.norm_epsilon,
                         attributes_.scale, attributes_.softcap, small(attributes_.window), small(in.table_width),
                         small(pieces.count));
}

// How prompts' attention is cut: one program has some queries of the heads that share a kv head. Where those are too
// few to fill the GPU, others take pieces of the context.
template <bool kInt8>
typename PagedAttention<kInt8>::Tiles PagedAttention<kInt8>::tiles_of(const Inputs& in) const {
  const int64_t group = attributes_.heads / attributes_.kv_heads;
  const auto tiles = [&](const std::string& key) {
    const Kernel& kernel = session_.device.find(session_.key("attention_prefill", key), in.tokens - in.decodes);
    const int64_t height = kernel.constant("BLOCK_M"), pack = std::min(group, height);
    return Tiles{&kernel, nullptr, up(std::max<int64_t>(1, in.longest_query), height / pack),
                 attributes_.kv_heads * up(group, pack), 1, 0, 0};
  };
  Tiles split = tiles(shape_key(in) + ".split");
  split.pieces = std::min({split.kernel->constant("PROGRAMS") / (split.across * split.heads * in.prompts),
                           int64_t{split.kernel->constant("PIECES")},
                           up(in.longest_context, split.kernel->constant("PIECE"))});
  if (split.pieces < 2) return tiles(shape_key(in));
  const std::string merge = std::to_string(attributes_.heads) + "." + std::to_string(in.value_dim) +
                            (in.sinks.present ? ".sinks" : "");
  split.merge = &session_.device.find(session_.key("attention_merge", merge), split.pieces);
  const int64_t rows = (in.tokens - in.decodes) * attributes_.heads * split.pieces;
  split.results = room(rows * in.value_dim * 4);
  split.stats = room(rows * 2 * 4);
  return split;
}

template <bool kInt8>
void PagedAttention<kInt8>::prefill(const Inputs& in, Stream stream, const Tiles& tiles, const void* turned,
                                    char* scratch, void* out) const {
  char* stats = scratch + tiles.results;
  session_.device.launch(*tiles.kernel, stream, {tiles.across * tiles.pieces, tiles.heads, in.prompts}, turned,
                         in.k_cache.data, in.v_cache.data, in.k_scale.data, in.v_scale.data, in.block_tables.data,
                         in.query_start.data, in.seq_lens.data, in.sinks.data, out, scratch, stats, attributes_.scale,
                         attributes_.softcap, small(attributes_.window), small(in.table_width), small(in.decodes),
                         small(tiles.pieces));
  if (tiles.pieces == 1) return;
  session_.device.launch(*tiles.merge, stream, {in.tokens - in.decodes, attributes_.heads}, scratch, stats,
                         in.sinks.data, out, small(tiles.pieces), small(in.decodes));
}

template class PagedAttention<false>;
template class PagedAttention<true>;

}  // namespace ortolan::cuda

#include "attention_inputs.h"

#include <algorithm>
#include <limits>

namespace ortolan {
namespace {

std::string at(const char* name, int64_t index, int64_t value) {
  return std::string("input ") + name + "[" + std::to_string(index) + "] is " + std::to_string(value);
}

void expect_shape(const Call& call, const Tensor& tensor, const char* name, const Shape& shape) {
  if (tensor.shape == shape) return;
  call.refuse(std::string("input ") + name + " has shape " + shape_text(tensor.shape) +
              ", but the other inputs ask for " + shape_text(shape) + ".");
}

int positive(const NodeInfo& node, const char* name) {
  const int64_t value = node.integer(name);
  if (value < 1 || value > 65536) node.refuse(name, "is " + std::to_string(value) + ". Give a number of heads.");
  return static_cast<int>(value);
}

}  // namespace

AttentionAttributes::AttentionAttributes(const NodeInfo& node)
    : heads(positive(node, "heads")),
      kv_heads(positive(node, "kv_heads")),
      scale(node.real("scale")),
      window(node.integer("window", 0)),
      softcap(node.real("softcap", 0.0f)),
      rotary_dims(0),
      interleaved(false),
      norm_epsilon(node.real("norm_epsilon", 1e-6f)),
      rope_table(node.constant(11, "rope_table")),
      q_norm(node.constant(12, "q_norm")),
      k_norm(node.constant(13, "k_norm")),
      sinks(node.constant(14, "sinks")) {
  if (heads % kv_heads != 0) {
    node.refuse("kv_heads",
                "is " + std::to_string(kv_heads) + " and does not divide the " + std::to_string(heads) + " heads.");
  }
  if (window < 0)
    node.refuse("window", "is " + std::to_string(window) + ". Give the number of visible tokens, 0 for all.");
  if (!(softcap >= 0.0f))
    node.refuse("softcap", "is " + std::to_string(softcap) + ". Give a positive cap, 0 for none.");
  if (!(norm_epsilon >= 0.0f))
    node.refuse("norm_epsilon", "is " + std::to_string(norm_epsilon) + ". Give a number that is not negative.");
  const int64_t dims = node.integer("rotary_dims", 0);
  if (dims < 0 || dims % 2 != 0 || dims > kMaximumHeadDim) {
    node.refuse("rotary_dims",
                "is " + std::to_string(dims) + ". Give an even number within the head, 0 for no RoPE.");
  }
  rotary_dims = static_cast<int>(dims);
  const int64_t pairing = node.integer("interleaved", 0);
  if (pairing != 0 && pairing != 1) node.refuse("interleaved", "is " + std::to_string(pairing) + ". Give 0 or 1.");
  interleaved = pairing == 1;
}

AttentionInputs::AttentionInputs(const Call& call, const AttentionAttributes& attributes) {
  read_cache(call, attributes);
  read_rows(call, attributes);
  read_batch(call, attributes);
  read_extras(call, attributes);
}

void AttentionInputs::read_cache(const Call& call, const AttentionAttributes& attributes) {
  k_cache = call.input(3, "k_cache");
  v_cache = call.input(4, "v_cache");
  if (k_cache.shape.size() != 4 || k_cache.shape[2] != attributes.kv_heads) {
    call.refuse("input k_cache has shape " + shape_text(k_cache.shape) + ". Give [blocks, block_size, " +
                std::to_string(attributes.kv_heads) + ", head_dim].");
  }
  if (v_cache.shape.size() != 4 ||
      !std::equal(v_cache.shape.data(), v_cache.shape.data() + 3, k_cache.shape.data())) {
    call.refuse("input v_cache has shape " + shape_text(v_cache.shape) + ", but k_cache has " +
                shape_text(k_cache.shape) + ". They may differ in the last axis only.");
  }
  blocks = k_cache.shape[0];
  block_size = k_cache.shape[1];
  const int64_t key_dim = k_cache.shape[3], v_dim = v_cache.shape[3];
  if (block_size < 1 || key_dim < 1 || v_dim < 1 || key_dim > kMaximumHeadDim || v_dim > kMaximumHeadDim) {
    call.refuse("inputs k_cache and v_cache have shapes " + shape_text(k_cache.shape) + " and " +
                shape_text(v_cache.shape) + ". Blocks hold at least one slot and heads 1 to " +
                std::to_string(kMaximumHeadDim) + " dims.");
  }
  if (blocks > std::numeric_limits<int32_t>::max() / block_size) {
    call.refuse("input k_cache has " + std::to_string(blocks) + " blocks of " + std::to_string(block_size) +
                " slots, more than an int32 slot can name. Use fewer blocks.");
  }
  head_dim = static_cast<int>(key_dim);
  value_dim = static_cast<int>(v_dim);
  if (attributes.rotary_dims > head_dim) {
    call.refuse("attribute rotary_dims is " + std::to_string(attributes.rotary_dims) + ", but a head has " +
                std::to_string(head_dim) + " dims.");
  }
}

void AttentionInputs::read_rows(const Call& call, const AttentionAttributes& attributes) {
  const Tensor rows = call.input(0, "q"), keys = call.optional_input(1, "k"), values = call.optional_input(2, "v");
  if (keys.present != values.present)
    call.refuse("inputs k and v go together: give both, or none and q | k | v in q.");
  if (rows.shape.size() != 2)
    call.refuse("input q has shape " + shape_text(rows.shape) + ". Give [tokens, columns].");
  tokens = rows.shape[0];
  const int64_t q_width = static_cast<int64_t>(attributes.heads) * head_dim;
  const int64_t k_width = static_cast<int64_t>(attributes.kv_heads) * head_dim;
  const int64_t v_width = static_cast<int64_t>(attributes.kv_heads) * value_dim;
  q = rows.as<float>();
  if (keys.present) {
    expect_shape(call, rows, "q", {tokens, q_width});
    expect_shape(call, keys, "k", {tokens, k_width});
    expect_shape(call, values, "v", {tokens, v_width});
    k = keys.as<float>();
    v = values.as<float>();
    q_stride = q_width;
    k_stride = k_width;
    v_stride = v_width;
  } else {
    expect_shape(call, rows, "q", {tokens, q_width + k_width + v_width});
    k = q + q_width;
    v = k + k_width;
    q_stride = k_stride = v_stride = q_width + k_width + v_width;
  }
}

void AttentionInputs::read_batch(const Call& call, const AttentionAttributes& attributes) {
  const Tensor tables = call.input(5, "block_tables"), slots = call.input(6, "slot_mapping");
  const Tensor starts = call.input(7, "query_start"), lengths = call.input(8, "seq_lens");
  const Tensor rows = call.input(9, "positions"), plan = call.input(10, "plan");
  if (tables.shape.size() != 2) {
    call.refuse("input block_tables has shape " + shape_text(tables.shape) +
                ". Give [sequences, blocks of the longest].");
  }
  sequences = tables.shape[0];
  table_width = tables.shape[1];
  expect_shape(call, slots, "slot_mapping", {tokens});
  expect_shape(call, starts, "query_start", {sequences + 1});
  expect_shape(call, lengths, "seq_lens", {sequences});
  expect_shape(call, rows, "positions", {tokens});
  expect_shape(call, plan, "plan", {6});
  block_tables = tables.as<int32_t>();
  slot_mapping = slots.as<int32_t>();
  query_start = starts.as<int32_t>();
  seq_lens = lengths.as<int32_t>();
  positions = rows.as<int64_t>();

  if (query_start[0] != 0)
    call.refuse(at("query_start", 0, query_start[0]) + ". The first sequence starts at row 0.");
  real_tokens = query_start[sequences];
  for (int64_t s = 0; s < sequences; ++s) {
    if (query_start[s + 1] < query_start[s] || query_start[s + 1] > tokens) {
      call.refuse(at("query_start", s + 1, query_start[s + 1]) + " after " + std::to_string(query_start[s]) +
                  ". Starts never fall and stay within the " + std::to_string(tokens) + " rows of q.");
    }
  }
  if (plan.as<int32_t>()[4] != real_tokens) {
    call.refuse(at("plan", 4, plan.as<int32_t>()[4]) + ", but query_start ends at " + std::to_string(real_tokens) +
                ". Both name the number of real tokens.");
  }
  for (int64_t s = 0; s < sequences; ++s) check_sequence(call, attributes, s);
  const int64_t slot_count = blocks * block_size;
  for (int64_t t = 0; t < real_tokens; ++t) {
    if (slot_mapping[t] < -1 || slot_mapping[t] >= slot_count) {
      call.refuse(at("slot_mapping", t, slot_mapping[t]) + ", but the cache has " + std::to_string(slot_count) +
                  " slots. Give a slot from 0, or -1 to write nothing.");
    }
  }
}

void AttentionInputs::check_sequence(const Call& call, const AttentionAttributes& attributes,
                                     int64_t sequence) const {
  const int64_t queries = query_start[sequence + 1] - query_start[sequence];
  const int64_t length = seq_lens[sequence];
  if (length < queries || length > table_width * block_size) {
    call.refuse(at("seq_lens", sequence, length) + ". It must count at least the sequence's " +
                std::to_string(queries) + " new tokens and at most the " +
                std::to_string(table_width * block_size) + " slots of its block table.");
  }
  if (queries == 0) return;
  // Blocks wholly before the window of the first query are never read: they may be freed, their numbers stale.
  const int64_t oldest = attributes.window > 0 ? std::max<int64_t>(0, length - queries - attributes.window + 1) : 0;
  for (int64_t b = oldest / block_size; b <= (length - 1) / block_size; ++b) {
    const int32_t block = block_tables[sequence * table_width + b];
    if (block < 0 || block >= blocks) {
      call.refuse("input block_tables[" + std::to_string(sequence) + ", " + std::to_string(b) + "] is block " +
                  std::to_string(block) + ", but the cache has " + std::to_string(blocks) +
                  ". Give a block for every visible position of the sequence.");
    }
  }
}

void AttentionInputs::read_extras(const Call& call, const AttentionAttributes& attributes) {
  const Tensor rope = call.optional_input(attributes.rope_table, 11, "rope_table");
  if (rope.present != (attributes.rotary_dims > 0)) {
    call.refuse(rope.present
                    ? "input rope_table is given, but attribute rotary_dims is 0. Set it to the table's columns."
                    : "input rope_table is missing, but attribute rotary_dims is not 0. Give the table.");
  }
  if (rope.present) {
    if (rope.shape.size() != 2 || rope.shape[1] != attributes.rotary_dims) {
      call.refuse("input rope_table has shape " + shape_text(rope.shape) + ". Give [positions, " +
                  std::to_string(attributes.rotary_dims) + "].");
    }
    for (int64_t t = 0; t < real_tokens; ++t) {
      if (positions[t] < 0 || positions[t] >= rope.shape[0]) {
        call.refuse(at("positions", t, positions[t]) + ", but rope_table has " + std::to_string(rope.shape[0]) +
                    " rows. Keep positions within the model's context.");
      }
    }
    rope_table = rope.as<float>();
  }
  const Tensor query_norm = call.optional_input(attributes.q_norm, 12, "q_norm");
  const Tensor key_norm = call.optional_input(attributes.k_norm, 13, "k_norm");
  const Tensor sink_logits = call.optional_input(attributes.sinks, 14, "sinks");
  if (query_norm.present) expect_shape(call, query_norm, "q_norm", {head_dim});
  if (key_norm.present) expect_shape(call, key_norm, "k_norm", {head_dim});
  if (sink_logits.present) expect_shape(call, sink_logits, "sinks", {attributes.heads});
  q_norm = query_norm.as<float>();
  k_norm = key_norm.as<float>();
  sinks = sink_logits.as<float>();
  if (call.optional_input(15, "k_scale").present || call.optional_input(16, "v_scale").present) {
    call.refuse(
        "inputs k_scale and v_scale are for a quantised cache, which the CPU kernels do not have. "
        "Use a float32 or float16 cache.");
  }
}

}  // namespace ortolan

#include "cuda_experts.h"

#include <algorithm>
#include <iterator>

namespace ortolan::cuda {
namespace {

// Rows that are taken together; their parts in float32 are the largest memory that the operator takes.
constexpr int64_t kMostRows = 2048;
constexpr int64_t kBlockRows = 64;

// A kernel keeps all experts of a row in registers: a power of two.
int64_t power(int64_t experts) {
  int64_t found = 16;
  while (found < experts) found *= 2;
  return found;
}

std::optional<FragmentForm> form_of(const NodeInfo& node, bool quantised) {
  if (!quantised) return std::nullopt;
  return FragmentForm(node);
}

}  // namespace

// Some rows, what the router said of them, and where their pairs lie.
template <bool kQuantised>
struct Experts<kQuantised>::Work {
  Stream stream;
  int64_t rows;
  int64_t first;  // of them in x and y
  const Tensor &x, &logits, &gate_up, &down, &y;
  const Kernel &gate_up_kernel, &down_kernel;
  int64_t blocks;
  int32_t *chosen, *order, *ends;
  char *shares, *between, *parts;
};

template <bool kQuantised>
Experts<kQuantised>::Experts(const NodeInfo& node, const Session& session)
    : session_(session),
      routing_(node),
      activation_(node.text("activation", "silu")),
      hidden_(node.integer("gate_up_columns")),
      inner_(node.integer("down_columns")),
      gate_up_form_(form_of(node.under("gate_up_"), kQuantised)),
      down_form_(form_of(node.under("down_"), kQuantised)) {
  const int64_t experts = routing_.experts();
  if (hidden_ < 1 || inner_ < 1 || node.integer("gate_up_rows") != experts * 2 * inner_ ||
      node.integer("down_rows") != experts * hidden_) {
    node.refuse("gate_up_rows", "and down_rows do not fit " + std::to_string(experts) + " experts of " +
                                    std::to_string(hidden_) + " -> " + std::to_string(inner_) + " columns and back.");
  }
  if (kQuantised && !session.half())
    node.refuse("gate_up_bits", "asks for quantised weights, whose kernels compute in float16 only.");
  if (kQuantised && (inner_ % kBlockRows != 0 || hidden_ % kBlockRows != 0))
    node.refuse("gate_up_rows", "and down_rows must give each of gate, up and down a multiple of 64 rows.");
}

template <bool kQuantised>
void Experts<kQuantised>::expect(const Call& call, const Tensor& weight, const char* name, int64_t rows,
                                 int64_t columns, const std::optional<FragmentForm>& form) const {
  if (form) {
    form->expect(call, weight);
  } else if (weight.shape != Shape{rows, columns}) {
    call.refuse(std::string("input ") + name + " has shape " + shape_text(weight.shape) + ". Give " +
                shape_text({rows, columns}) + ".");
  }
}

template <bool kQuantised>
std::string Experts<kQuantised>::key(const char* kernel, const std::optional<FragmentForm>& form,
                                     const std::string& rest) const {
  return session_.key(kernel, std::to_string(power(routing_.experts())) + (form ? "/" + form->key() : "") +
                                  (rest.empty() ? "" : "/" + rest));
}

template <bool kQuantised>
void Experts<kQuantised>::compute(const Call& call) const {
  const Tensor x = call.input(0, "x"), logits = call.input(1, "logits"), gate_up = call.input(2, "gate_up_weights"),
               down = call.input(3, "down_weights");
  const int64_t experts = routing_.experts(), top_k = routing_.top_k();
  if (x.shape.size() != 2 || x.shape[1] != hidden_)
    call.refuse("input x has shape " + shape_text(x.shape) + ". Give [tokens, " + std::to_string(hidden_) + "].");
  if (logits.shape != Shape{x.shape[0], experts})
    call.refuse("input logits has shape " + shape_text(logits.shape) + ". Give one for each row and expert, " +
                shape_text({x.shape[0], experts}) + ".");
  expect(call, gate_up, "gate_up_weights", experts * 2 * inner_, hidden_, gate_up_form_);
  expect(call, down, "down_weights", experts * hidden_, inner_, down_form_);
  const Tensor y = call.output(0, "y", x.shape);
  if (y.count == 0) return;
  const int64_t together = std::min(x.shape[0], kMostRows), pairs = together * top_k;
  const char* name = kQuantised ? "experts_quant_tile" : "experts_tile";
  const Kernel& first = session_.device.find(key(name, gate_up_form_, "same/" + activation_), together);
  const Kernel& second = session_.device.find(key(name, down_form_, "float32/none"), together);
  const int64_t block = first.constant("BLOCK_M");
  if (second.constant("BLOCK_M") != block)
    call.refuse("finds kernels for blocks of other sizes, " + first.key + " and " + second.key + ".");
  // What all pairs take in blocks of which each expert's last one is not full.
  const int64_t blocks = std::min(pairs, experts) + pairs / block;
  const int64_t sizes[] = {room(pairs * 4), room(pairs * 4),      room(blocks * block * 4),
                           room(experts * 4), room(pairs * inner_ * 2), room(pairs * hidden_ * 4)};
  int64_t bytes = 0;
  for (const int64_t size : sizes) bytes += size;
  char* scratch = session_.device.scratch(static_cast<size_t>(bytes));
  char* at[std::size(sizes)];
  for (size_t i = 0; i < std::size(sizes); scratch += sizes[i++]) at[i] = scratch;
  for (int64_t from = 0; from < x.shape[0]; from += together) {
    run({call.stream(), std::min(together, x.shape[0] - from), from, x, logits, gate_up, down, y, first, second, blocks,
         reinterpret_cast<int32_t*>(at[0]), reinterpret_cast<int32_t*>(at[2]), reinterpret_cast<int32_t*>(at[3]), at[1],
         at[4], at[5]});
  }
}

template <bool kQuantised>
void Experts<kQuantised>::run(const Work& work) const {
  const Device& device = session_.device;
  const int64_t experts = routing_.experts(), top_k = routing_.top_k();
  device.launch(device.find(key("experts_route", std::nullopt, "")), work.stream, {work.rows},
                work.logits.template as<float>() + work.first * experts, work.chosen, work.shares, small(experts),
                small(top_k), small(routing_.normalise() ? 1 : 0), routing_.scale());
  device.launch(device.find(key("experts_group", std::nullopt, "")), work.stream, {experts}, work.chosen, work.order,
                work.ends, small(work.rows * top_k), small(experts),
                small(work.gate_up_kernel.constant("BLOCK_M")));
  // Both types of activations take two bytes.
  const char* x = work.x.template as<char>() + 2 * work.first * hidden_;
  char* y = work.y.template as<char>() + 2 * work.first * hidden_;
  multiply(work, work.gate_up_kernel, x, work.gate_up, work.between, top_k, inner_, hidden_, gate_up_form_);
  multiply(work, work.down_kernel, work.between, work.down, work.parts, 1, hidden_, inner_, down_form_);
  const Kernel& sum = device.find(session_.key("experts_sum"));
  device.launch(sum, work.stream, {work.rows, up(hidden_, sum.constant("BLOCK"))}, work.parts, work.shares, y,
                small(top_k), small(hidden_));
}

template <bool kQuantised>
void Experts<kQuantised>::multiply(const Work& work, const Kernel& kernel, const void* x, const Tensor& w, void* y,
                                   int64_t share, int64_t width, int64_t columns,
                                   const std::optional<FragmentForm>& form) const {
  // Programs that share the blocks, of which there may be fewer: as many as fill the GPU, by the shapes alone.
  const int64_t tiles = up(width, kernel.constant("BLOCK_N"));
  const Grid grid{tiles, std::min(work.blocks, up(kernel.constant("PROGRAMS"), tiles))};
  const int32_t experts = small(routing_.experts());
  if (form) {
    session_.device.launch(kernel, work.stream, grid, x, w.data, w.data, y, work.order, work.ends, experts,
                           small(share), small(width), small(columns), small(form->block_bytes()));
  } else {
    session_.device.launch(kernel, work.stream, grid, x, w.data, y, work.order, work.ends, experts, small(share),
                           small(width), small(columns));
  }
}

template class Experts<false>;
template class Experts<true>;

}  // namespace ortolan::cuda

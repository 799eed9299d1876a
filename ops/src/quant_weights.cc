#include "quant_weights.h"

#include <limits>

namespace ortolan {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

int64_t size(const NodeInfo& node, const char* name) {
  const int64_t value = node.integer(name);
  if (value < 1 || value > kMost) node.refuse(name, "is " + std::to_string(value) + ". Give a positive size.");
  return value;
}

QuantForm form_of(const NodeInfo& node) {
  const std::string layout = node.text("layout", "cpu-vnni");
  if (layout != "cpu-vnni")
    node.refuse("layout", "is '" + layout + "', which the CPU kernels do not read. Export for the target cpu.");
  const int64_t bits = node.integer("bits");
  if (bits != 4 && bits != 8) node.refuse("bits", "is " + std::to_string(bits) + ". Choose 4 or 8.");
  const int64_t group = node.integer("group");
  const bool known = group == 32 || group == 64 || group == 128 || (group == 16 && bits == 8);
  if (!known) {
    node.refuse("group",
                "is " + std::to_string(group) + ". Choose 32, 64 or 128; 16 goes with codes of 8 bits only.");
  }
  const int64_t minima = node.integer("minima", 0);
  if (minima != 0 && minima != 1) node.refuse("minima", "is " + std::to_string(minima) + ". Give 0 or 1.");
  const std::string scales = node.text("scales", "float16");
  if (scales != "float16" && scales != "float32")
    node.refuse("scales", "is '" + scales + "'. Choose float16 or float32.");
  return {static_cast<int>(bits), static_cast<int>(group), minima == 1, scales == "float16"};
}

}  // namespace

QuantWeights::QuantWeights(const NodeInfo& node, size_t input)
    : rows_(size(node, "rows")),
      columns_(size(node, "columns")),
      form_(form_of(node)),
      groups_((columns_ + form_.group - 1) / form_.group),
      input_(input),
      name_(node.named("weights")),
      constant_(node.constant(input, name_.c_str())) {}

const uint8_t* QuantWeights::data(const Call& call) const {
  const Tensor weights = call.input(constant_, input_, name_.c_str());
  const Shape shape{tiles(), groups_, static_cast<int64_t>(form_.group_bytes())};
  if (weights.shape != shape) {
    call.refuse("input " + name_ + " has shape " + shape_text(weights.shape) + ", but the attributes ask for " +
                shape_text(shape) + ".");
  }
  return weights.as<uint8_t>();
}

}  // namespace ortolan

#include "expert_weights.h"

#include <algorithm>
#include <cstring>

namespace ortolan {
namespace {

// Values that one task lays out.
constexpr int64_t kTaskSize = 8192;

}  // namespace

ExpertWeights::ExpertWeights(const NodeInfo& node, size_t input, bool quantised, int64_t experts,
                             const Kernels& kernels)
    : kernels_(kernels),
      rows_(node.integer("rows")),
      columns_(node.integer("columns")),
      experts_(experts),
      input_(input),
      name_(node.named("weights")),
      constant_(node.constant(input, name_.c_str())) {
  if (rows_ < 1 || rows_ % experts != 0) {
    node.refuse("rows", "is " + std::to_string(rows_) + ". Give as many for each of the " +
                            std::to_string(experts) + " experts.");
  }
  rows_ /= experts;
  if (columns_ < 1) node.refuse("columns", "is " + std::to_string(columns_) + ". Give a positive size.");
  if (!quantised) return;
  quantised_.emplace(node, input);
  if (rows_ % kTile != 0) {
    node.refuse("rows", "gives each expert " + std::to_string(rows_) +
                            ". Quantised weights of an expert are a multiple of 16 rows.");
  }
}

int64_t ExpertWeights::tile_bytes() const {
  if (quantised_) return static_cast<int64_t>(quantised_->tile_bytes());
  return columns_ * kTile * static_cast<int64_t>(sizeof(float));
}

const uint8_t* ExpertWeights::data(const Call& call) const {
  if (quantised_) return quantised_->data(call);
  const Tensor weights = call.input(constant_, input_, name_.c_str());
  const Shape shape{rows_ * experts_, columns_};
  if (weights.shape != shape) {
    call.refuse("input " + name_ + " has shape " + shape_text(weights.shape) + ", but the attributes ask for " +
                shape_text(shape) + ".");
  }
  return weights.as<uint8_t>();
}

size_t ExpertWeights::room(int64_t pairs) const {
  const auto rows = static_cast<size_t>(pairs);
  if (!rounds()) return Scratch::room(rows * static_cast<size_t>(columns_));
  const auto groups = static_cast<size_t>(quantised_->groups());
  const auto codes = groups * static_cast<size_t>(kernels_.group_room(quantised_->form()));
  return Scratch::room(rows * codes / sizeof(float)) + Scratch::room(rows * 2 * groups);
}

ExpertRows ExpertWeights::lay_out(const Call& call, const float* x, const RoutedRows& routed, const int32_t* of_pair,
                                  Scratch& scratch) const {
  ExpertRows rows;
  const int64_t pairs = routed.pairs();
  const auto source = [&](int64_t pair) { return x + (of_pair ? of_pair[pair] : pair) * columns_; };
  if (!rounds()) {
    rows.x = x;
    if (!of_pair) return rows;
    float* gathered = scratch.take(static_cast<size_t>(pairs * columns_));
    rows.x = gathered;
    const int64_t at_once = std::max<int64_t>(1, kTaskSize / columns_);
    call.parallel_for(static_cast<size_t>((pairs + at_once - 1) / at_once), [&](size_t task) {
      const int64_t first = static_cast<int64_t>(task) * at_once;
      for (int64_t pair = first; pair < std::min(pairs, first + at_once); ++pair)
        std::memcpy(gathered + pair * columns_, source(pair), static_cast<size_t>(columns_) * sizeof(float));
    });
    return rows;
  }
  const QuantForm& form = quantised_->form();
  const int64_t groups = quantised_->groups();
  rows.code_bytes = groups * kernels_.group_room(form);
  rows.codes =
      reinterpret_cast<int8_t*>(scratch.take(static_cast<size_t>(pairs * rows.code_bytes) / sizeof(float)));
  rows.scales = scratch.take(static_cast<size_t>(pairs * 2 * groups));
  // An expert is one task: its rows are few beside its weights.
  std::vector<int64_t> busy;
  for (int64_t expert = 0; expert < experts_; ++expert) {
    if (routed.first[static_cast<size_t>(expert)] < routed.first[static_cast<size_t>(expert) + 1])
      busy.push_back(expert);
  }
  call.for_each(busy.size(), pairs * columns_ > kTaskSize, [&](size_t task) {
    const auto expert = static_cast<size_t>(busy[task]);
    const int64_t last = routed.first[expert + 1];
    for (int64_t pair = routed.first[expert]; pair < last;) {
      const QuantPanel into = panel(rows, pair, last - pair);
      for (int r = 0; r < into.rows; ++r) kernels_.quantise_row(form, source(pair + r), columns_, into, r);
      pair += into.rows;
    }
  });
  return rows;
}

QuantPanel ExpertWeights::panel(const ExpertRows& rows, int64_t pair, int64_t left) const {
  return {rows.codes + pair * rows.code_bytes, rows.scales + pair * 2 * quantised_->groups(),
          kernels_.panel_rows(quantised_->form(), left)};
}

size_t ExpertWeights::wide_bytes(int64_t rows) const {
  const int from = rounds() ? kernels_.expand_from(quantised_->form()) : 0;
  if (from == 0 || rows < from) return 0;
  const size_t bytes = quantised_->form().expanded_bytes(static_cast<int>(quantised_->groups()));
  return Scratch::room(bytes / sizeof(float)) * sizeof(float);
}

ExpertTiles ExpertWeights::tiles(const uint8_t* data, int64_t expert, const int64_t (&first)[kTilesAtOnce]) const {
  ExpertTiles tiles;
  for (const int64_t row : first) {
    if (row < 0) break;
    const int64_t at = expert * rows_ + row;
    if (quantised_) {
      tiles.quantised[tiles.count] = quantised_->tile(data, at / kTile);
    } else {
      tiles.plain[tiles.count] = reinterpret_cast<const float*>(data) + at * columns_;
    }
    tiles.outputs[tiles.count++] = static_cast<int>(std::min<int64_t>(kTile, rows_ - row));
  }
  return tiles;
}

void ExpertWeights::widen(ExpertTiles& tiles, uint8_t* bytes, size_t tile_bytes) const {
  for (int t = 0; t < tiles.count; ++t)
    tiles.quantised[t] = kernels_.expand(tiles.quantised[t], bytes + static_cast<size_t>(t) * tile_bytes);
}

int ExpertWeights::multiply(const ExpertTiles& tiles, const ExpertRows& rows, int64_t pair, int64_t left,
                            float* products) const {
  if (rounds()) {
    const QuantPanel of_rows = panel(rows, pair, left);
    kernels_.multiply_tiles(tiles.quantised, tiles.count, of_rows, products);
    return of_rows.rows;
  }
  const int count = static_cast<int>(std::min<int64_t>(kMostRows, left));
  const float* x = rows.x + pair * columns_;
  for (int t = 0; t < tiles.count; ++t) {
    float* out = products + t * count * kTile;
    if (quantised_) {
      kernels_.multiply_tile_exactly(tiles.quantised[t], x, static_cast<size_t>(columns_), columns_, count, out);
    } else {
      kernels_.multiply_plain(tiles.plain[t], tiles.outputs[t], x, columns_, count, out);
    }
  }
  return count;
}

}  // namespace ortolan

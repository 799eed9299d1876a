// One weight of every expert, one below the other, quantised or in binary32; and rows laid out for its products.
#pragma once

#include <optional>

#include "expert_routing.h"
#include "kernels.h"
#include "quant_weights.h"
#include "scratch.h"

namespace ortolan {

// The rows of all pairs as products read them, in the order of RoutedRows.
struct ExpertRows {
  const float* x = nullptr;  // [pairs, columns], where products are of numbers in binary32
  int8_t* codes = nullptr;   // else in panels, those of one expert one after the other
  float* scales = nullptr;
  int64_t code_bytes = 0;  // of a row
};

// Up to kTilesAtOnce tiles of one expert, ready to be multiplied.
struct ExpertTiles {
  int count = 0;
  QuantTile quantised[kTilesAtOnce] = {};
  const float* plain[kTilesAtOnce] = {};
  int outputs[kTilesAtOnce] = {};  // rows of each tile
};

class ExpertWeights {
 public:
  // `input`: the index of the weights among the node's inputs. `node` is seen through the weights' own names.
  ExpertWeights(const NodeInfo& node, size_t input, bool quantised, int64_t experts, const Kernels& kernels);

  int64_t rows() const { return rows_; }  // of one expert
  int64_t columns() const { return columns_; }
  bool quantised() const { return quantised_.has_value(); }
  // Bytes that a product with one tile reads.
  int64_t tile_bytes() const;
  const uint8_t* data(const Call& call) const;

  // Floats of scratch memory that `lay_out` takes for so many pairs.
  size_t room(int64_t pairs) const;
  // Rows of x for each pair: those that `of_pair` names, or without it one a pair.
  ExpertRows lay_out(const Call& call, const float* x, const RoutedRows& routed, const int32_t* of_pair,
                     Scratch& scratch) const;
  // Bytes of scratch memory in which `widen` puts one tile; 0 where it gains nothing for so many rows.
  size_t wide_bytes(int64_t rows) const;
  // The tiles of an expert that begin at its rows `first`, as many as are not negative.
  ExpertTiles tiles(const uint8_t* data, int64_t expert, const int64_t (&first)[kTilesAtOnce]) const;
  void widen(ExpertTiles& tiles, uint8_t* bytes, size_t tile_bytes) const;
  // products[tile, row, kTile] of the tiles with the rows from pair `pair` on, of `left` that the expert has from
  // there; returns how many rows that were.
  int multiply(const ExpertTiles& tiles, const ExpertRows& rows, int64_t pair, int64_t left, float* products) const;

 private:
  bool rounds() const { return quantised() && !kernels_.exact; }
  QuantPanel panel(const ExpertRows& rows, int64_t pair, int64_t left) const;

  const Kernels& kernels_;
  std::optional<QuantWeights> quantised_;
  int64_t rows_;
  int64_t columns_;
  int64_t experts_;
  size_t input_;
  std::string name_;
  Tensor constant_;  // of weights in binary32, where they are an initialiser of the graph
};

}  // namespace ortolan

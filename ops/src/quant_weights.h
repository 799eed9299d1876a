// The weights of a node in the layout cpu-vnni: attributes, checked against the tensor of one call.
#pragma once

#include <string>

#include "ort_api.h"
#include "quant_layout.h"

namespace ortolan {

class QuantWeights {
 public:
  // `input`: the index of the node's input that holds the weights.
  QuantWeights(const NodeInfo& node, size_t input);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t groups() const { return groups_; }
  int64_t tiles() const { return (rows_ + kTile - 1) / kTile; }
  const QuantForm& form() const { return form_; }
  // Bytes of one tile.
  size_t tile_bytes() const { return static_cast<size_t>(groups_) * form_.group_bytes(); }
  // Bytes of the tensor. Refuses another shape than [tiles, groups, bytes of a group].
  const uint8_t* data(const Call& call) const;
  QuantTile tile(const uint8_t* data, int64_t number) const {
    return {data + static_cast<size_t>(number) * tile_bytes(), form_, static_cast<int>(groups_)};
  }

 private:
  int64_t rows_;
  int64_t columns_;
  QuantForm form_;
  int64_t groups_;
  size_t input_;
  std::string name_;
  Tensor constant_;  // where the weights are an initialiser of the graph
};

}  // namespace ortolan

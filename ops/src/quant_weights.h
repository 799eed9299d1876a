// The weights of a node in the layout cpu-vnni: attributes, checked against the tensor of one call.
#pragma once

#include "ort_api.h"
#include "quant_layout.h"

namespace ortolan {

class QuantWeights {
 public:
  explicit QuantWeights(const NodeInfo& node);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t groups() const { return groups_; }
  int64_t tiles() const { return (rows_ + kTile - 1) / kTile; }
  const QuantForm& form() const { return form_; }
  // Bytes of one tile.
  size_t tile_bytes() const { return static_cast<size_t>(groups_) * form_.group_bytes(); }
  // Bytes of the tensor that input `index` holds. Refuses another shape than [tiles, groups, bytes of a group].
  const uint8_t* data(const Call& call, size_t index) const;
  QuantTile tile(const uint8_t* data, int64_t number) const {
    return {data + static_cast<size_t>(number) * tile_bytes(), form_, static_cast<int>(groups_)};
  }

 private:
  int64_t rows_;
  int64_t columns_;
  QuantForm form_;
  int64_t groups_;
};

}  // namespace ortolan

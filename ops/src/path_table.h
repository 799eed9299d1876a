// The table of a path's kernels. Included last.
#pragma once

#include "kernels.h"

namespace ortolan {
namespace {

constexpr Kernels path_table(const char* name) {
  Kernels table{};
  table.name = name;
  table.width = kWidth;
  table.gated_activation = gated_activation;
  table.add_rms_norm = add_rms_norm;
  table.rms_norm = rms_norm;
  table.transform_head = transform_head;
  table.to_half = to_half;
  table.to_float = to_float;
  table.attend_chunk = attend_chunk;
  table.merge = merge;
  table.finish = finish;
  table.group_room = group_room;
  table.quantise_row = quantise_row;
  table.panel_rows = panel_rows;
  table.expand_from = expand_from;
  table.expand = expand;
  table.multiply_tiles = multiply_tiles;
  table.release_unit = release_unit;
  table.ask_for_rows = ask_for_rows;
  table.finish_rows = finish_rows;
  table.multiply_tile_exactly = multiply_tile_exactly;
  table.multiply_plain = multiply_plain;
  table.gather_row = gather_row;
  table.scan_logits = scan_logits;
  table.peak_of = peak_of;
  table.gather_at_least = gather_at_least;
  table.count_above = count_above;
  table.exp_sum = exp_sum;
  table.sum_at_least = sum_at_least;
  return table;
}

}  // namespace
}  // namespace ortolan

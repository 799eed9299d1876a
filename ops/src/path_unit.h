// A thread's use of the matrix unit. Included after tile_unit.h, or what stands for it.
#pragma once

#include "quant_layout.h"

namespace ortolan {
namespace {

constexpr int kUnitRows = 16;

// Whether this thread's registers have their shapes. One set of shapes serves all products: 16 rows of 64 bytes.
bool& unit_is_shaped() {
  static thread_local bool shaped = false;
  return shaped;
}

void shape_unit() {
  if (unit_is_shaped()) return;
  unit::configure(kUnitRows, kUnitDepth);
  unit_is_shaped() = true;
}

void release_shapes() {
  if (!unit_is_shaped()) return;
  unit::release();
  unit_is_shaped() = false;
}

}  // namespace
}  // namespace ortolan

#include "quant_gather.h"

#include <algorithm>

namespace ortolan {
namespace {

// Values a task; below this a second thread costs more than it saves.
constexpr int64_t kTaskSize = 8192;

}  // namespace

void QuantGather::compute(const Call& call) const {
  const uint8_t* data = weights_.data(call);
  const Tensor ids = call.input(1, "ids");
  Shape shape = ids.shape;
  shape.push_back(weights_.columns());
  const Tensor y = call.output(0, "y", shape);
  for (int64_t i = 0; i < ids.count; ++i) {
    const int64_t id = ids.as<int64_t>()[i];
    if (id < 0 || id >= weights_.rows()) {
      call.refuse("input ids[" + std::to_string(i) + "] is " + std::to_string(id) + ", but there are " +
                  std::to_string(weights_.rows()) + " rows. Give a row from 0.");
    }
  }
  const int64_t at_once = std::max<int64_t>(1, kTaskSize / weights_.columns());
  call.parallel_for(static_cast<size_t>((ids.count + at_once - 1) / at_once), [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * at_once;
    for (int64_t i = first; i < std::min(ids.count, first + at_once); ++i) {
      const int64_t id = ids.as<int64_t>()[i];
      kernels_.gather_row(weights_.tile(data, id / kTile), static_cast<int>(id % kTile), weights_.columns(),
                          y.as<float>() + i * weights_.columns());
    }
  });
}

}  // namespace ortolan

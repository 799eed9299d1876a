#include "scratch.h"

#include <new>

namespace ortolan {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

void Scratch::Free::operator()(float* memory) const { ::operator delete(memory, kAlignment); }

Scratch::Pool& Scratch::pool() {
  static thread_local Pool pool;
  return pool;
}

Scratch::Scratch(size_t floats) {
  Pool& buffers = pool();
  // The smallest that is large enough, else the largest, which then grows.
  size_t best = buffers.size();
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (best == buffers.size()) {
      best = i;
      continue;
    }
    const size_t have = buffers[i].floats, chosen = buffers[best].floats;
    const bool better = chosen >= floats ? have >= floats && have < chosen : have > chosen;
    if (better) best = i;
  }
  if (best < buffers.size()) {
    buffer_ = std::move(buffers[best]);
    buffers.erase(buffers.begin() + static_cast<std::ptrdiff_t>(best));
  }
  if (buffer_.floats < floats) {
    buffer_ = Buffer{};
    buffer_.memory.reset(static_cast<float*>(::operator new(floats * sizeof(float), kAlignment)));
    buffer_.floats = floats;
  }
}

Scratch::~Scratch() {
  try {
    pool().push_back(std::move(buffer_));
  } catch (const std::bad_alloc&) {
    // No room to remember the buffer: it is freed instead.
  }
}

float* Scratch::take(size_t count) {
  float* start = buffer_.memory.get() + used_;
  used_ += room(count);
  return start;
}

}  // namespace ortolan

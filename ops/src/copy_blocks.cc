#include "copy_blocks.h"

#include <algorithm>
#include <cstring>

namespace ortolan {
namespace {

// Bytes of each block that one task copies.
constexpr int64_t kSlice = 16384;

void check_blocks(const Call& call, const Tensor& numbers, const char* name, int64_t blocks) {
  for (int64_t i = 0; i < numbers.count; ++i) {
    const int32_t block = numbers.as<int32_t>()[i];
    if (block < 0 || block >= blocks) {
      call.refuse(std::string("input ") + name + "[" + std::to_string(i) + "] is block " + std::to_string(block) +
                  ", but the cache has " + std::to_string(blocks) + ". Give block numbers from 0.");
    }
  }
}

}  // namespace

template <abi::ElementType kCache>
void CopyBlocks<kCache>::compute(const Call& call) const {
  const Tensor cache = call.input(0, "cache"), source = call.input(1, "source"),
               target = call.input(2, "destination");
  if (cache.shape.size() < 2) {
    call.refuse("input cache has shape " + shape_text(cache.shape) + ". Give [blocks, block_size, ...].");
  }
  if (source.shape.size() != 1 || source.shape != target.shape) {
    call.refuse("input source has shape " + shape_text(source.shape) + " and destination " +
                shape_text(target.shape) + ". Give two lists of one length.");
  }
  check_blocks(call, source, "source", cache.shape[0]);
  check_blocks(call, target, "destination", cache.shape[0]);
  call.in_place(0, "cache_out", cache);
  if (cache.count == 0 || source.count == 0) return;

  // Each task copies its slice of every block, so that the pairs keep their order within each byte.
  const int64_t block_bytes = cache.count / cache.shape[0] * (kCache == abi::kFloat ? 4 : 2);
  const int64_t slices = (block_bytes + kSlice - 1) / kSlice;
  call.parallel_for(static_cast<size_t>(slices), [&](size_t slice) {
    const int64_t begin = static_cast<int64_t>(slice) * kSlice;
    const auto size = static_cast<size_t>(std::min(kSlice, block_bytes - begin));
    char* base = cache.as<char>() + begin;
    for (int64_t i = 0; i < source.count; ++i) {
      const int64_t from = source.as<int32_t>()[i], to = target.as<int32_t>()[i];
      if (from != to) std::memcpy(base + to * block_bytes, base + from * block_bytes, size);
    }
  });
}

template class CopyBlocks<abi::kFloat>;
template class CopyBlocks<abi::kFloat16>;

}  // namespace ortolan

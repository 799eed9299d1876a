// Attention to one chunk of keys in binary16 by a matrix unit that multiplies bfloat16.
// Included after path_attention.h and path_unit.h.
//
// A number is split in two of bfloat16, the upper and the rest of it: keys and values exactly, since binary16 has 11
// significant bits and bfloat16 8 each; queries and weights to 2^-16. A product is upper * upper + upper * rest + rest
// * upper, which leaves out at most 2^-16 of the product's magnitude, and adds up in float32.
//
// Every sum takes its terms in one order: 32 dims (or keys) at a time, of these the three kinds of products in turn,
// and within a kind as the unit does: even ones and odd ones apart, in order. Factors may change sides. So a row has
// the same bits with up to 16 rows, whose keys are read as they lie, and with more, whose keys are turned to columns.
#pragma once

#include <utility>

#include "kernels.h"

namespace ortolan {
namespace {

// Numbers of a register's row, those of a register, and the registers whose sums grow side by side.
constexpr int kUnitNumbers = kUnitDepth / 2;
constexpr int kUnitSize = kUnitRows * kUnitNumbers;
constexpr int kUnitSums = 4;
// Registers of keys or values along a chunk.
constexpr int kKeySteps = kChunk / kUnitNumbers;
// Rows of a tile at most: keys and values are laid out once for all of them.
constexpr int kUnitTileRows = 192;

// A factor that several products share: registers `step` bytes apart, whose rows lie `row` bytes apart; the rests lie
// `rest` bytes behind the uppers.
struct SharedFactor {
  const uint8_t* upper;
  ptrdiff_t row;
  ptrdiff_t rest;
  ptrdiff_t step;
};

// One product for each number of kOwn over steps [first, last). The factor of product p lies at own + p * apart: for
// each step a register of uppers and one of rests. Its sums go to `to` + p * to_apart, rows `to_row` bytes apart.
template <bool kSharedLeft, int... kOwn>
void sum_products(const SharedFactor& shared, const uint16_t* own, ptrdiff_t apart, int first, int last, float* to,
                  ptrdiff_t to_apart, ptrdiff_t to_row) {
  constexpr int kUpper = unit::kActivations, kRest = unit::kActivations + 1;
  const auto add = [&](auto product, auto factor, const uint16_t* from) {
    constexpr int kProduct = decltype(product)::value, kFactor = decltype(factor)::value;
    constexpr int kFrom = unit::kCodes + kProduct % 2;
    unit::load<kFrom>(from + kProduct * apart, kUnitDepth);
    if constexpr (kSharedLeft) {
      unit::multiply_floats<unit::kSums + kProduct, kFactor, kFrom>();
    } else {
      unit::multiply_floats<unit::kSums + kProduct, kFrom, kFactor>();
    }
  };
  const std::integral_constant<int, kUpper> upper{};
  const std::integral_constant<int, kRest> rest{};
  (unit::zero<unit::kSums + kOwn>(), ...);
  for (int step = first; step < last; ++step) {
    const uint8_t* factor = shared.upper + step * shared.step;
    const uint16_t* uppers = own + static_cast<ptrdiff_t>(step) * 2 * kUnitSize;
    unit::load<kUpper>(factor, shared.row);
    unit::load<kRest>(factor + shared.rest, shared.row);
    (add(std::integral_constant<int, kOwn>{}, upper, uppers), ...);
    (add(std::integral_constant<int, kOwn>{}, upper, uppers + kUnitSize), ...);
    (add(std::integral_constant<int, kOwn>{}, rest, uppers), ...);
  }
  (unit::store<unit::kSums + kOwn>(to + kOwn * to_apart, to_row), ...);
}

// `count` products, as many at a time as there are registers for their sums.
template <bool kSharedLeft>
void sum_all_products(const SharedFactor& shared, const uint16_t* own, ptrdiff_t apart, int first, int last,
                      float* to, ptrdiff_t to_apart, ptrdiff_t to_row, int count) {
  constexpr decltype(&sum_products<kSharedLeft, 0>) kinds[kUnitSums] = {
      sum_products<kSharedLeft, 0>, sum_products<kSharedLeft, 0, 1>, sum_products<kSharedLeft, 0, 1, 2>,
      sum_products<kSharedLeft, 0, 1, 2, 3>};
  for (int p = 0; p < count; p += kUnitSums) {
    const int some = count - p < kUnitSums ? count - p : kUnitSums;
    kinds[some - 1](shared, own + p * apart, apart, first, last, to + p * to_apart, to_apart, to_row);
  }
}

// Numbers a and b, side by side or in turn, as uppers and, kUnitSize or `rest` further on, rests.
inline void lay_out(uint16_t* to, ptrdiff_t rest, F a, F b) {
  const F upper_a = simd::near_bfloat(a), upper_b = simd::near_bfloat(b);
  simd::store_upper(to, upper_a, upper_b);
  simd::store_upper(to + rest, simd::near_bfloat(simd::sub(a, upper_a)), simd::near_bfloat(simd::sub(b, upper_b)));
}
inline void lay_in_turn(uint16_t* to, F a, F b) {
  const F upper_a = simd::near_bfloat(a), upper_b = simd::near_bfloat(b);
  simd::store_upper_pairs(to, upper_a, upper_b);
  simd::store_upper_pairs(to + kUnitSize, simd::near_bfloat(simd::sub(a, upper_a)),
                          simd::near_bfloat(simd::sub(b, upper_b)));
}

// Sixteen rows, of which `load(row, dim)` gives a vector, as columns of registers: for each 32 dims uppers and rests,
// whose row p holds dims 2p and 2p + 1 of every row.
template <typename Load>
void turn_to_columns(const Load& load, int stride, uint16_t* to) {
  for (int row = 0; row < kUnitRows; row += kWidth) {
    for (int d = 0; d < stride; d += kWidth) {
      F square[kWidth];
      for (int k = 0; k < kWidth; ++k) square[k] = load(row + k, d);
      simd::transpose(square);
      for (int k = 0; k < kWidth; k += 2) {
        const int dim = d + k;
        uint16_t* at = to + dim / kUnitNumbers * 2 * kUnitSize + dim % kUnitNumbers / 2 * kUnitNumbers + 2 * row;
        lay_in_turn(at, square[k], square[k + 1]);
      }
    }
  }
}

// Scratch memory of a chunk.
struct UnitChunk {
  uint16_t* keys;     // for each 16 keys and 32 dims a register of uppers and one of rests
  uint16_t* values;   // for each 16 dims and 32 keys the same; row p holds keys 2p and 2p + 1
  float* scores;      // [kUnitRows, kChunk]
  uint16_t* weights;  // [kUnitRows, 2, kChunk], uppers and rests
  float* turned;      // scores of kUnitSums times 16 keys, a row for each key
  float* sums;        // [kUnitRows, value_stride], where fewer rows are left
};

constexpr size_t kScoreRoom = static_cast<size_t>(kUnitRows) * kChunk;
constexpr size_t kTurnedRoom = static_cast<size_t>(kUnitSums) * kUnitRows * kUnitRows;

size_t unit_attention_room(int head_stride, int value_stride) {
  return static_cast<size_t>(kChunk) * static_cast<size_t>(head_stride + value_stride) + 2 * kScoreRoom + kTurnedRoom +
         static_cast<size_t>(kUnitRows) * static_cast<size_t>(value_stride);
}

UnitChunk unit_chunk(const ChunkTask& task) {
  UnitChunk chunk;
  float* at = task.scratch;
  const auto take = [&](size_t floats) {
    float* taken = at;
    at += floats;
    return taken;
  };
  chunk.keys = reinterpret_cast<uint16_t*>(take(static_cast<size_t>(kChunk) * static_cast<size_t>(task.head_stride)));
  chunk.values =
      reinterpret_cast<uint16_t*>(take(static_cast<size_t>(kChunk) * static_cast<size_t>(task.value_stride)));
  chunk.scores = take(kScoreRoom);
  chunk.weights = reinterpret_cast<uint16_t*>(take(kScoreRoom));
  chunk.turned = take(kTurnedRoom);
  chunk.sums = at;
  return chunk;
}

// Rows of queries: up to 16 as columns, more as rows of uppers and then rests.
void prepare_unit_queries(float* queries, int rows, int stride, float* scratch) {
  const auto floats = static_cast<size_t>(stride);
  const int room = (rows + kUnitRows - 1) / kUnitRows * kUnitRows;
  __builtin_memset(queries + static_cast<size_t>(rows) * floats, 0,
                   static_cast<size_t>(room - rows) * floats * sizeof(float));
  if (rows <= kUnitRows) {
    __builtin_memcpy(scratch, queries, kUnitRows * floats * sizeof(float));
    turn_to_columns([&](int row, int d) { return simd::load(scratch + row * stride + d); }, stride,
                    reinterpret_cast<uint16_t*>(queries));
    return;
  }
  for (int row = 0; row < rows; ++row) {
    float* query = queries + static_cast<size_t>(row) * floats;
    __builtin_memcpy(scratch, query, floats * sizeof(float));
    for (int d = 0; d < stride; d += 2 * kWidth) {
      lay_out(reinterpret_cast<uint16_t*>(query) + d, stride, simd::load(scratch + d), simd::load(scratch + d + kWidth));
    }
  }
}

// Keys [begin, end) as rows of registers, for a few queries; what fills up a register repeats keys.
void lay_keys(const ChunkTask& task, int begin, int end, uint16_t* keys) {
  const int key_bytes = task.head_stride * 2, value_bytes = task.value_stride * 2;
  const size_t block_size = static_cast<size_t>(task.head_stride) * 2 * kUnitRows;
  int asked = begin;
  for (int j = begin / kUnitRows * kUnitRows; j < end; j += kUnitRows) {
    // Keys of a later round, and the values that follow.
    const int next = j + kUnitRows, ahead = next + kKeysAhead;
    prefetch_rows(task.key, asked, ahead < end ? ahead : end, key_bytes);
    asked = ahead;
    prefetch_rows(task.value, j < begin ? begin : j, next < end ? next : end, value_bytes);
    uint16_t* block = keys + static_cast<size_t>(j / kUnitRows) * block_size;
    for (int k = 0; k < kUnitRows; ++k) {
      const void* key = task.key[j + k < begin ? begin : j + k < end ? j + k : end - 1];
      for (int d = 0; d < task.head_stride; d += 2 * kWidth) {
        uint16_t* to = block + d / kUnitNumbers * 2 * kUnitSize + k * kUnitNumbers + d % kUnitNumbers;
        lay_out(to, kUnitSize, load_cached<true>(key, d), load_cached<true>(key, d + kWidth));
      }
    }
  }
}

// Keys [begin, end) as columns of registers, for many queries.
void turn_unit_keys(const ChunkTask& task, int begin, int end, uint16_t* keys) {
  const size_t block_size = static_cast<size_t>(task.head_stride) * 2 * kUnitRows;
  for (int j = begin / kUnitRows * kUnitRows; j < end; j += kUnitRows) {
    const auto load = [&](int k, int d) {
      return load_cached<true>(task.key[j + k < begin ? begin : j + k < end ? j + k : end - 1], d);
    };
    turn_to_columns(load, task.head_stride, keys + static_cast<size_t>(j / kUnitRows) * block_size);
  }
}

// Values of keys [begin, end) in pairs, zeros where a register has more.
void pair_values(const ChunkTask& task, int begin, int end, uint16_t* values) {
  const int last = (end + kUnitNumbers - 1) / kUnitNumbers * kUnitNumbers;
  for (int j = begin / kUnitNumbers * kUnitNumbers; j < last; j += 2) {
    uint16_t* pair = values + j / kUnitNumbers * 2 * kUnitSize + j % kUnitNumbers * kUnitRows;
    const bool even = j >= begin && j < end, odd = j + 1 >= begin && j + 1 < end;
    for (int d = 0; d < task.value_stride; d += kWidth) {
      const F a = even ? load_cached<true>(task.value[j], d) : simd::zero();
      const F b = odd ? load_cached<true>(task.value[j + 1], d) : simd::zero();
      lay_in_turn(pair + static_cast<size_t>(d / kUnitRows) * kKeySteps * 2 * kUnitSize + d % kUnitRows * 2, a, b);
    }
  }
}

// Scores of 16 queries from `row` on against 16 times `count` keys from `key` on.
void score_by_unit(const ChunkTask& task, const UnitChunk& chunk, int row, int key, int count) {
  const ptrdiff_t stride = task.head_stride, block_size = stride * 2 * kUnitRows;
  const int steps = task.head_stride / kUnitNumbers;
  const uint16_t* keys = chunk.keys + key / kUnitRows * block_size;
  const auto* queries = reinterpret_cast<const uint8_t*>(task.queries + row * stride);
  constexpr ptrdiff_t kRegister = kUnitSize * sizeof(uint16_t), kRow = kChunk * sizeof(float);
  if (task.rows > kUnitRows) {
    const SharedFactor shared{queries, stride * 4, stride * 2, kUnitDepth};
    return sum_all_products<true>(shared, keys, block_size, 0, steps, chunk.scores + key, kUnitRows, kRow, count);
  }
  const SharedFactor shared{queries, kUnitDepth, kRegister, 2 * kRegister};
  for (int some = 0; some < count; some += kUnitSums) {
    const int now = count - some < kUnitSums ? count - some : kUnitSums;
    sum_all_products<false>(shared, keys + some * block_size, block_size, 0, steps, chunk.turned,
                            kUnitRows * kUnitRows, kUnitRows * sizeof(float), now);
    for (int k = 0; k < now * kUnitRows; k += kWidth) {
      for (int r = 0; r < task.rows; r += kWidth) {
        F square[kWidth];
        for (int i = 0; i < kWidth; ++i) square[i] = simd::load(chunk.turned + (k + i) * kUnitRows + r);
        simd::transpose(square);
        for (int i = 0; i < kWidth; ++i) {
          simd::store(chunk.scores + (r + i) * kChunk + key + some * kUnitRows + k, square[i]);
        }
      }
    }
  }
}

// Scores of rows become weights, laid out for keys [first, last), whole registers of them.
void weights_by_unit(const ChunkTask& task, const UnitChunk& chunk, int row, int rows, int first, int last) {
  for (int r = 0; r < kUnitRows; ++r) {
    int from = 0, until = 0;
    float* scores = chunk.scores + r * kChunk;
    if (r < rows && task.first[row + r] < task.last[row + r]) {
      from = task.first[row + r] / kWidth * kWidth;
      until = task.last[row + r];
      softmax_row(scores, task.first[row + r], until, task.softcap, task.maximum + row + r, task.total + row + r);
    }
    uint16_t* weights = chunk.weights + 2 * r * kChunk;
    for (int j = first; j < last; j += 2 * kWidth) {
      const F a = j >= from && j < until ? simd::load(scores + j) : simd::zero();
      const F b = j + kWidth >= from && j + kWidth < until ? simd::load(scores + j + kWidth) : simd::zero();
      lay_out(weights + j, kChunk, a, b);
    }
  }
}

// Up to 16 rows from `row` on.
void attend_rows_by_unit(const ChunkTask& task, const UnitChunk& chunk, int row) {
  const int rows = task.rows - row < kUnitRows ? task.rows - row : kUnitRows;
  const auto [begin, end] = visible_keys(task, row, rows);
  if (begin >= end) return;
  const int key = begin / kUnitRows * kUnitRows;
  score_by_unit(task, chunk, row, key, (end - key + kUnitRows - 1) / kUnitRows);
  const int first = begin / kUnitNumbers, last = (end + kUnitNumbers - 1) / kUnitNumbers;
  weights_by_unit(task, chunk, row, rows, first * kUnitNumbers, last * kUnitNumbers);
  const SharedFactor shared{reinterpret_cast<const uint8_t*>(chunk.weights), 2 * kChunk * sizeof(uint16_t),
                            kChunk * sizeof(uint16_t), kUnitDepth};
  float* to = task.sums + static_cast<ptrdiff_t>(row) * task.value_stride;
  const size_t row_bytes = static_cast<size_t>(task.value_stride) * sizeof(float);
  sum_all_products<true>(shared, chunk.values, kKeySteps * 2 * kUnitSize, first, last,
                         rows < kUnitRows ? chunk.sums : to, kUnitRows, static_cast<ptrdiff_t>(row_bytes),
                         task.value_stride / kUnitRows);
  if (rows < kUnitRows) __builtin_memcpy(to, chunk.sums, static_cast<size_t>(rows) * row_bytes);
}

void attend_chunk_by_unit(const ChunkTask& task) {
  const auto [begin, end] = visible_keys(task, 0, task.rows);
  if (begin >= end) return;
  shape_unit();
  const UnitChunk chunk = unit_chunk(task);
  if (task.rows <= kUnitRows) {
    lay_keys(task, begin, end, chunk.keys);
  } else {
    turn_unit_keys(task, begin, end, chunk.keys);
  }
  pair_values(task, begin, end, chunk.values);
  for (int row = 0; row < task.rows; row += kUnitRows) attend_rows_by_unit(task, chunk, row);
}

constexpr AttentionWay kUnitAttention{kUnitNumbers, kUnitTileRows, unit_attention_room, prepare_unit_queries,
                                      attend_chunk_by_unit};

}  // namespace
}  // namespace ortolan

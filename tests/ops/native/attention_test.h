// Attention of query rows to one chunk, and the merging of chunks, of one path.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "reference.h"

namespace ortolan::test {

// A chunk whose rows are each a piece of memory of their own; those that nothing may read do not exist.
struct ChunkCase {
  int rows, head_stride, value_stride;
  bool half;
  Exact<float> queries;
  std::vector<Exact<uint8_t>> keys, values;
  std::vector<double> key_numbers, value_numbers;
  std::vector<const void*> key, value;
  std::vector<int> first, last;

  ChunkCase(int rows, int head_stride, int value_stride, bool half, int begin, int end, Random& random)
      : rows(rows),
        head_stride(head_stride),
        value_stride(value_stride),
        half(half),
        queries(static_cast<size_t>(rows * head_stride)),
        key(kChunk),
        value(kChunk) {
    for (size_t i = 0; i < queries.size(); ++i) queries[i] = random.normal() * 0.3f;
    for (int j = 0; j < kChunk; ++j) {
      const bool exists = j >= begin && j < end;
      fill(keys, key_numbers, head_stride, exists, random);
      fill(values, value_numbers, value_stride, exists, random);
      key[static_cast<size_t>(j)] = exists ? keys.back().get() : nullptr;
      value[static_cast<size_t>(j)] = exists ? values.back().get() : nullptr;
    }
    for (int r = 0; r < rows; ++r) {
      // Each row sees a part; the first all, so that the bounds are met.
      const int low = r == 0 ? begin : begin + random.below(end - begin);
      first.push_back(low);
      last.push_back(r == 0 ? end : low + random.below(end - low + 1));
    }
  }
  void fill(std::vector<Exact<uint8_t>>& rows_of, std::vector<double>& numbers, int dims, bool exists, Random& random) {
    rows_of.emplace_back(static_cast<size_t>(exists ? dims * (half ? 2 : 4) : 0));
    for (int d = 0; d < dims; ++d) {
      double number = 0;
      if (exists && half) {
        const auto bits = static_cast<uint16_t>((random.below(2) << 15) | (0x3000 + random.below(0x1000)));
        std::memcpy(rows_of.back().get() + 2 * d, &bits, sizeof bits);
        number = half_value(bits);
      } else if (exists) {
        const float x = random.normal();
        std::memcpy(rows_of.back().get() + 4 * d, &x, sizeof x);
        number = x;
      }
      numbers.push_back(number);
    }
  }
};

struct ChunkResult {
  Exact<float> maximum, total, sums;
};

inline ChunkResult attend(const Kernels& kernels, const ChunkCase& one, int row, int count, float softcap) {
  const auto rows = static_cast<size_t>(count), stride = static_cast<size_t>(one.value_stride);
  Exact<float> scores(rows * kChunk), panel(static_cast<size_t>(2 * kernels.width * one.head_stride)),
      wide(static_cast<size_t>(kChunk) * stride);
  ChunkResult result{Exact<float>(rows), Exact<float>(rows), Exact<float>(rows * stride)};
  kernels.attend_chunk({count, one.half, one.queries.get() + row * one.head_stride, one.head_stride, one.value_stride,
                        one.key.data(), one.value.data(), one.first.data() + row, one.last.data() + row, softcap,
                        scores.get(), panel.get(), wide.get(), result.maximum.get(), result.total.get(),
                        result.sums.get()});
  return result;
}

inline void expect_row(const ChunkCase& one, const ChunkResult& result, int row, float softcap, Report& report,
                       const std::string& what) {
  const auto r = static_cast<size_t>(row);
  if (one.first[r] >= one.last[r]) return;
  std::vector<double> score(kChunk);
  double top = -1e300;
  for (int j = one.first[r]; j < one.last[r]; ++j) {
    double sum = 0;
    for (int d = 0; d < one.head_stride; ++d) {
      sum += one.queries[static_cast<size_t>(row * one.head_stride + d)] *
             one.key_numbers[static_cast<size_t>(j * one.head_stride + d)];
    }
    score[static_cast<size_t>(j)] = softcap > 0 ? softcap * std::tanh(sum / softcap) : sum;
    top = std::max(top, score[static_cast<size_t>(j)]);
  }
  double total = 0;
  std::vector<double> sums(static_cast<size_t>(one.value_stride));
  for (int j = one.first[r]; j < one.last[r]; ++j) {
    const double weight = std::exp2(score[static_cast<size_t>(j)] - top);
    total += weight;
    for (int d = 0; d < one.value_stride; ++d) {
      sums[static_cast<size_t>(d)] += weight * one.value_numbers[static_cast<size_t>(j * one.value_stride + d)];
    }
  }
  double worst = std::fabs(result.maximum[r] - top) + std::fabs(result.total[r] - total) / total;
  for (int d = 0; d < one.value_stride; ++d) {
    worst = std::max(worst, std::fabs(result.sums[static_cast<size_t>(row * one.value_stride + d)] -
                                      sums[static_cast<size_t>(d)]) /
                                total);
  }
  report.check(worst <= 1e-4, what + ": row " + std::to_string(row));
}

inline void test_attention(const Kernels& kernels, Report& report) {
  Random random(11);
  const int bounds[][2] = {{0, kChunk}, {0, 1}, {kChunk - 1, kChunk}, {5, 9}, {17, 110}};
  for (int rows : {1, 2, 3, 4, 5, 7, 9, 19, 20, 23, 61}) {
    for (int dims : {kernels.width, 3 * kernels.width, 64}) {
      for (bool half : {false, true}) {
        const int* bound = bounds[random.below(5)];
        const ChunkCase one(rows, dims, rows % 2 ? dims : 2 * dims, half, bound[0], bound[1], random);
        const float softcap = rows % 3 == 0 ? 2.0f : 0.0f;
        const std::string what = std::string(kernels.name) + (half ? " half " : " float ") + std::to_string(rows) +
                                 " rows of " + std::to_string(dims) + ", keys " + std::to_string(bound[0]) + " to " +
                                 std::to_string(bound[1]);
        const ChunkResult whole = attend(kernels, one, 0, rows, softcap);
        for (int row = 0; row < rows; ++row) {
          expect_row(one, whole, row, softcap, report, what);
          if (one.first[static_cast<size_t>(row)] >= one.last[static_cast<size_t>(row)]) continue;
          const ChunkResult alone = attend(kernels, one, row, 1, softcap);
          const float* sums = whole.sums.get() + row * one.value_stride;
          report.check(alone.maximum[0] == whole.maximum[static_cast<size_t>(row)] &&
                           alone.total[0] == whole.total[static_cast<size_t>(row)] &&
                           std::equal(sums, sums + one.value_stride, alone.sums.get()),
                       what + ": the bits of row " + std::to_string(row) + " alone");
        }
      }
    }
  }
}

inline void test_elementwise(const Kernels& kernels, Report& report) {
  Random random(12);
  const std::string name = kernels.name;
  for (size_t count : {size_t{1}, size_t{5}, size_t{16}, size_t{33}, size_t{100}}) {
    Exact<float> x(count), rest(count), weight(count), y(count), sum(count), back(count);
    Exact<uint16_t> half(count);
    double square = 0;
    for (size_t i = 0; i < count; ++i) {
      x[i] = random.normal();
      rest[i] = random.normal();
      weight[i] = random.between(0.5f, 1.5f);
      const double both = static_cast<double>(x[i]) + rest[i];
      square += both * both;
    }
    kernels.add_rms_norm(x.get(), rest.get(), weight.get(), 1e-5f, y.get(), sum.get(), count);
    kernels.rms_norm(sum.get(), weight.get(), 1e-5f, back.get(), count);
    const double factor = 1 / std::sqrt(square / static_cast<double>(count) + 1e-5);
    for (size_t i = 0; i < count; ++i) {
      report.check(std::fabs(y[i] - sum[i] * factor * weight[i]) <= 1e-5 * (1 + std::fabs(y[i])), name + ": norm");
      report.check(y[i] == back[i], name + ": a norm with or without addition");
    }
    kernels.to_half(x.get(), half.get(), static_cast<int>(count));
    kernels.to_float(half.get(), back.get(), static_cast<int>(count));
    for (size_t i = 0; i < count; ++i) {
      report.check(back[i] == static_cast<float>(half_value(half[i])), name + ": binary16 to float");
      report.check(std::fabs(back[i] - x[i]) <= std::fabs(x[i]) * 0x1p-11 + 0x1p-25, name + ": float to binary16");
    }
  }
}

}  // namespace ortolan::test

// What the kernels of a path are held against: plain loops over the layout's definition, and random problems.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels.h"

namespace ortolan::test {

// Memory of exactly the size asked for and of no more than its type's alignment, so that a sanitizer notices any
// read past its end.
template <typename T>
class Exact {
 public:
  explicit Exact(size_t count) : memory_(new T[count]()), count_(count) {}
  T* get() { return memory_.get(); }
  const T* get() const { return memory_.get(); }
  T& operator[](size_t i) { return memory_[i]; }
  const T& operator[](size_t i) const { return memory_[i]; }
  size_t size() const { return count_; }

 private:
  std::unique_ptr<T[]> memory_;
  size_t count_;
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  float normal() { return static_cast<float>(normal_(engine_)); }
  float between(float low, float high) { return std::uniform_real_distribution<float>(low, high)(engine_); }
  int below(int bound) { return static_cast<int>(engine_() % static_cast<uint32_t>(bound)); }

 private:
  std::mt19937 engine_;
  std::normal_distribution<double> normal_{0.0, 1.0};
};

// Counts what was checked and says what failed.
class Report {
 public:
  void check(bool holds, const std::string& what) {
    ++checks_;
    if (holds) return;
    ++failures_;
    if (failures_ <= 20) std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  }
  int checks() const { return checks_; }
  int failures() const { return failures_; }

 private:
  int checks_ = 0;
  int failures_ = 0;
};

inline double half_value(uint16_t h) {
  const int exponent = (h >> 10) & 31, fraction = h & 1023;
  const double magnitude =
      exponent ? std::ldexp(1.0 + fraction / 1024.0, exponent - 15) : std::ldexp(fraction, -24);
  return h & 0x8000 ? -magnitude : magnitude;
}

// A tile of random weights in the layout cpu-vnni, and what each of them stands for.
struct TileCase {
  QuantForm form;
  int groups;
  Exact<uint8_t> bytes;
  std::vector<double> weight;  // [kTile, groups * group]

  TileCase(const QuantForm& form, int groups, Random& random);
  QuantTile tile() const { return {bytes.get(), form, groups}; }
  int columns() const { return groups * form.group; }
};

inline TileCase::TileCase(const QuantForm& form, int groups, Random& random)
    : form(form),
      groups(groups),
      bytes(static_cast<size_t>(groups) * form.group_bytes()),
      weight(static_cast<size_t>(kTile) * static_cast<size_t>(groups * form.group)) {
  for (int g = 0; g < groups; ++g) {
    uint8_t* group = bytes.get() + static_cast<size_t>(g) * form.group_bytes();
    double side[2][kTile] = {};
    for (int s = 0; s < (form.minima ? 2 : 1); ++s) {
      uint8_t* at = group + form.code_bytes() + static_cast<size_t>(s) * form.scale_bytes();
      for (int lane = 0; lane < kTile; ++lane) {
        if (form.half_scales) {
          // Binary16 of magnitudes 2^-7 to 2^-5, both signs.
          const auto half = static_cast<uint16_t>((random.below(2) << 15) | (0x2000 + random.below(2048)));
          std::memcpy(at + 2 * lane, &half, sizeof half);
          side[s][lane] = half_value(half);
        } else {
          const float value = random.between(-0.03f, 0.03f);
          std::memcpy(at + 4 * lane, &value, sizeof value);
          side[s][lane] = value;
        }
      }
    }
    for (int column = 0; column < form.group; ++column) {
      for (int lane = 0; lane < kTile; ++lane) {
        const int code = random.below(1 << form.bits);
        if (form.bits == 8) {
          group[(column / 4 * kTile + lane) * 4 + column % 4] = static_cast<uint8_t>(code);
        } else {
          const int quad = column % 32 / 4;
          uint8_t& byte = group[column / 32 * 256 + (quad % 4 * kTile + lane) * 4 + column % 4];
          byte = static_cast<uint8_t>(quad < 4 ? (byte & 0xf0) | code : (byte & 0x0f) | (code << 4));
        }
        weight[static_cast<size_t>(lane * groups * form.group + g * form.group + column)] =
            form.minima ? code * side[0][lane] + side[1][lane] : (code - (1 << (form.bits - 1))) * side[0][lane];
      }
    }
  }
}

}  // namespace ortolan::test

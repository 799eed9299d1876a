// What tile_unit.h does, in software: shapes are checked, and memory is touched where the unit would touch it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace ortolan {
namespace {
namespace unit {

constexpr int kSums = 0, kActivations = 4, kCodes = 6;

struct Register {
  int rows = 0;
  int row_bytes = 0;
  uint8_t bytes[16][64] = {};
};

struct State {
  bool configured = false;
  Register registers[8];
};

inline State& state() {
  static thread_local State state;
  return state;
}

inline Register& at(int number) {
  if (!state().configured) throw std::logic_error("a tile register is used without shapes");
  return state().registers[number];
}

inline void configure(int rows, int depth) {
  if (rows < 1 || rows > 16 || depth < 4 || depth > 64 || depth % 4 != 0)
    throw std::logic_error("no tile register has such a shape");
  state() = State{};
  state().configured = true;
  for (int i = 0; i < 8; ++i) {
    const bool codes = i >= kCodes;
    state().registers[i].rows = codes ? depth / 4 : rows;
    state().registers[i].row_bytes = i >= kActivations && !codes ? depth : 64;
  }
}

inline void release() { state() = State{}; }

template <int kRegister>
inline void zero() {
  std::memset(at(kRegister).bytes, 0, sizeof(Register::bytes));
}

template <int kRegister>
inline void load(const void* from, ptrdiff_t stride) {
  zero<kRegister>();
  Register& to = at(kRegister);
  for (int r = 0; r < to.rows; ++r) {
    std::memcpy(to.bytes[r], static_cast<const uint8_t*>(from) + r * stride, static_cast<size_t>(to.row_bytes));
  }
}

template <int kRegister>
inline void store(void* to, ptrdiff_t stride) {
  const Register& from = at(kRegister);
  for (int r = 0; r < from.rows; ++r) {
    std::memcpy(static_cast<uint8_t*>(to) + r * stride, from.bytes[r], static_cast<size_t>(from.row_bytes));
  }
}

template <int kTo, int kLeft, int kRight>
inline void multiply() {
  Register &to = at(kTo), &left = at(kLeft), &right = at(kRight);
  if (left.rows != to.rows || left.row_bytes != 4 * right.rows) throw std::logic_error("tile shapes do not fit");
  for (int m = 0; m < to.rows; ++m) {
    for (int n = 0; n < 16; ++n) {
      int32_t sum;
      std::memcpy(&sum, to.bytes[m] + 4 * n, sizeof sum);
      for (int k = 0; k < left.row_bytes; ++k) {
        sum += static_cast<int8_t>(left.bytes[m][k]) * right.bytes[k / 4][4 * n + k % 4];
      }
      std::memcpy(to.bytes[m] + 4 * n, &sum, sizeof sum);
    }
  }
}

}  // namespace unit
}  // namespace
}  // namespace ortolan

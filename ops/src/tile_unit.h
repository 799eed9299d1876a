// The matrix unit of AMX: eight registers, each a tile of up to 16 rows of 64 bytes.
//
// Written as assembly, since a compiler's own functions take register numbers as literals only and need options that
// older ones lack. Compilers never use these registers themselves.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ortolan {
namespace {
namespace unit {

// Registers: sums, of even and odd groups and of two tiles each; activations of even and odd groups; codes.
constexpr int kSums = 0, kActivations = 4, kCodes = 6;

// Shapes of a thread's registers: sums [rows, 16], activations [rows, depth], codes [depth / 4, 16, 4].
inline void configure(int rows, int depth) {
  struct alignas(64) {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } shapes = {1, 0, {}, {}, {}};
  for (int i = 0; i < 8; ++i) {
    const bool codes = i >= kCodes;
    shapes.rows[i] = static_cast<uint8_t>(codes ? depth / 4 : rows);
    shapes.row_bytes[i] = static_cast<uint16_t>(i >= kActivations && !codes ? depth : 64);
  }
  asm volatile("ldtilecfg %0" : : "m"(shapes));
}

// Gives the registers up, so that the system need not save them.
inline void release() { asm volatile("tilerelease"); }

template <int kRegister>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kRegister));
}

// Rows lie `stride` bytes apart.
template <int kRegister>
inline void load(const void* from, ptrdiff_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kRegister) : "memory");
}

template <int kRegister>
inline void store(void* to, ptrdiff_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kRegister) : "memory");
}

// sums[m, n] += activations[m, 4k + i] * codes[k, n, i], signed times unsigned.
template <int kTo, int kLeft, int kRight>
inline void multiply() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kTo), "i"(kLeft), "i"(kRight));
}

}  // namespace unit
}  // namespace
}  // namespace ortolan

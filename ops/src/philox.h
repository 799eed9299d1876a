// Philox4x32-10: random numbers that are a pure function of a key and a counter (Salmon, Moraes, Dror, Shaw,
// "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
#pragma once

#include <cstdint>

namespace ortolan {

// A number in [0, 1) with 53 random bits for a seed (the key) and a position (the counter).
inline double philox_uniform(uint64_t seed, uint64_t position) {
  uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const uint64_t mantissa = ((static_cast<uint64_t>(c0) << 32) | c1) >> 11;
  return static_cast<double>(mantissa) * 0x1.0p-53;
}

}  // namespace ortolan

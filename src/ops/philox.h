// Philox4x32-10 (Salmon et al., SC'11): random numbers as a function of key and counter alone, so a draw depends on its
// seed and position and never on what else is being sampled.
#pragma once

#include <array>
#include <cstdint>

namespace plumb {

// Four 32-bit words for counter (position, lane) under key `seed`.
inline std::array<uint32_t, 4> philox4x32(uint64_t seed, uint64_t position, uint64_t lane = 0) {
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  std::array<uint32_t, 4> c{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                            static_cast<uint32_t>(lane), static_cast<uint32_t>(lane >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(p0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

// Uniform in [0, 1), 53 bits.
inline double philox_uniform(uint64_t seed, uint64_t position, uint64_t lane = 0) {
  const std::array<uint32_t, 4> words = philox4x32(seed, position, lane);
  const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace plumb

// What this machine gives at best, for benchmarks to compare with: reading memory, and multiplying in registers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plumb {
class ThreadPool;
}

namespace plumb::cpu {

// Reads all of it once with every worker, by the widest loads there are. Returns something that depends on every byte.
uint64_t read_all(const std::byte* data, size_t bytes, ThreadPool& pool);
// Copies with every worker.
void copy_all(std::byte* to, const std::byte* from, size_t bytes, ThreadPool& pool);
// Runs vdpbf16ps on twelve independent sums for `rounds` rounds on every worker; floating point operations done, or 0
// on a CPU without it.
double multiply_registers(int64_t rounds, ThreadPool& pool);

// Per instruction set; probe.cpp chooses.
uint64_t read_avx512(const std::byte* data, size_t bytes);
float multiply_registers_avx512bf16(int64_t rounds);
inline constexpr double kRegisterFlop = 12 * 64;  // of a round

}  // namespace plumb::cpu

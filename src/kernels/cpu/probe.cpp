#include "kernels/cpu/probe.h"

#include <atomic>
#include <cstring>

#include "base/thread_pool.h"

namespace plumb::cpu {
namespace {

uint64_t read_generic(const std::byte* data, size_t bytes) {
  uint64_t sum[8] = {};
  for (size_t i = 0; i + sizeof sum <= bytes; i += sizeof sum) {
    uint64_t words[8];
    std::memcpy(words, data + i, sizeof words);
    for (int j = 0; j < 8; ++j) sum[j] |= words[j];
  }
  return sum[0] | sum[1] | sum[2] | sum[3] | sum[4] | sum[5] | sum[6] | sum[7];
}

// Whole cache lines of part `part`.
Range lines(size_t bytes, int part, int parts) {
  const Range range = split(static_cast<int64_t>(bytes / 256), part, parts);
  return {range.begin * 256, range.end * 256};
}

}  // namespace

uint64_t read_all(const std::byte* data, size_t bytes, ThreadPool& pool) {
  std::atomic<uint64_t> seen{0};
  pool.parallel([&](int worker, int workers) {
    const Range part = lines(bytes, worker, workers);
    const size_t size = static_cast<size_t>(part.end - part.begin);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
      seen |= read_avx512(data + part.begin, size);
      return;
    }
#endif
    seen |= read_generic(data + part.begin, size);
  });
  return seen;
}

void copy_all(std::byte* to, const std::byte* from, size_t bytes, ThreadPool& pool) {
  pool.parallel([&](int worker, int workers) {
    const Range part = lines(bytes, worker, workers);
    std::memcpy(to + part.begin, from + part.begin, static_cast<size_t>(part.end - part.begin));
  });
}

double multiply_registers(int64_t rounds, ThreadPool& pool) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512bf16")) return 0;
  pool.parallel([&](int, int) {
    const volatile float sum = multiply_registers_avx512bf16(rounds);
    static_cast<void>(sum);
  });
  return static_cast<double>(rounds) * kRegisterFlop * pool.size();
#else
  static_cast<void>(rounds);
  static_cast<void>(pool);
  return 0;
#endif
}

}  // namespace plumb::cpu

// Instruction sets and compute capabilities: what a kernel is built for and what a device has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plumb {

enum class Isa : uint8_t {
  Generic,     // any machine this binary starts on
  Avx2,        // AVX2 + FMA + F16C
  Avx512,      // F, BW, VL, DQ, CD
  Avx512Bf16,  // + BF16 and VBMI
  Sm90a,
  Sm100a,
  Sm120a,
  CudaPortable,
};
std::string to_string(Isa isa);

struct DeviceInfo {
  std::string name{};       // "cpu", "NVIDIA H200", ...
  std::vector<Isa> isas{};  // what it can run
  int64_t memory_bytes = 0;
  std::string memory_bound{};  // what sets that: "physical memory", "cgroup memory.max of ...", "the card"
  int64_t shared_bytes = 0;    // shared memory of one block; 0 on a CPU
  int cores = 1;
  int ranks = 1;              // that run on it, of the model's
  std::string unreachable{};  // why the devices of the ranks cannot read each other's memory; empty: they can
  bool has(Isa isa) const;
  bool is_gpu() const;
};

// This machine's CPU. `ceiling` hides what lies above it (tests, and --isa).
DeviceInfo detect_cpu(Isa ceiling = Isa::Avx512Bf16);

}  // namespace plumb

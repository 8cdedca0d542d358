// Kernel: a contract and the function that keeps it. Registry: the one list of them.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "device/stream.h"
#include "ops/args.h"
#include "ops/contract.h"

namespace plumb {

class Communicator;
class ThreadPool;

struct Kernel {
  Contract contract{};
  // args: the op's struct of ops/args.h. Null: this build knows the contract and has no code, as a build without CUDA
  // does for its kernels; such a plan can be read, not run.
  void (*launch)(const void* args, Stream& stream) = nullptr;
  // Of ops among ranks: makes what its launches need between the ranks, and attaches it to `comm`, unless it is there.
  // On all ranks at once, with the stream's device current.
  Status (*connect)(Communicator& comm) = nullptr;
};

// Wraps a typed function: make_kernel<LinearArgs, linear_rows>(contract).
template <class Args, void (*function)(const Args&, Stream&)>
Kernel make_kernel(Contract contract) {  // NOLINT(performance-unnecessary-value-param): moved from
  return {.contract = std::move(contract),
          .launch = [](const void* args, Stream& stream) { function(*static_cast<const Args*>(args), stream); }};
}

// A re-arrangement of a weight for kernels that read `to`. `fill` writes part `part` of `parts`, in parallel. `auto`
// inserts exact ones only: one that rounds changes the model, and must be asked for.
struct Conversion {
  Layout to = Layout::RowMajor;
  bool rounding = false;
  std::vector<Format> formats{};
  size_t (*bytes)(const EncodedMatrix& source) = nullptr;
  void (*fill)(const EncodedMatrix& source, std::byte* out, int part, int parts) = nullptr;
  // Of a layout that is nothing but the source's bytes at other places: copy(offset, from, bytes) makes it. Else null.
  using Copy = std::function<void(int64_t offset, const void* from, int64_t bytes)>;
  void (*pieces)(const EncodedMatrix& source, const Copy& copy) = nullptr;
};

struct Registry {
  std::vector<Kernel> kernels{};
  std::vector<Conversion> conversions{};
  const Kernel* find(std::string_view name) const;
  const Conversion* conversion(Layout to, const Format& format) const;  // exact ones alone
};

// kernels/all_kernels.cpp: every kernel of this build. Made once by cli/ and by tests.
Registry make_registry();

}  // namespace plumb

// Weights as a kernel that misreads them would see them.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "guard/fault.h"
#include "ops/kernel.h"

namespace plumb {

// Keeps what it made; a weight is misread once per kind.
class MisreadWeights {
 public:
  explicit MisreadWeights(const Registry& registry) : registry_(registry) {}
  // Kinds: ScaleFormat, NibbleOrder, BlockOffset. The same layout as `weight`, in the executor's memory.
  const Weight& get(const Weight& weight, PlantedKind kind, Executor& executor);

 private:
  struct Made {
    const void* of = nullptr;
    PlantedKind kind{};
    std::vector<std::byte> data{}, scale{};
    std::shared_ptr<std::byte> prepared{};
    Weight weight{};
  };
  const Registry& registry_;
  std::deque<Made> made_{};  // stays where it is
};

}  // namespace plumb

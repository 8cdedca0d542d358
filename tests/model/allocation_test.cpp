// A decode step allocates nothing: every operator new of this binary counts while it is watched.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "runners.h"
#include "support/paths.h"

namespace {

std::atomic<bool> watching{false};
std::atomic<int64_t> allocations{0};

void* allocate(std::size_t bytes, std::size_t align) {
  if (watching.load(std::memory_order_relaxed)) ++allocations;
  if (bytes == 0) bytes = 1;
  void* memory = align <= alignof(std::max_align_t) ? std::malloc(bytes)
                                                    : std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (memory == nullptr) std::abort();
  return memory;
}

// Not inlined: g++ would otherwise see free() meet a pointer of operator new and warn.
[[gnu::noinline]] void release(void* memory) { std::free(memory); }

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t align) { return allocate(bytes, static_cast<size_t>(align)); }
void* operator new[](std::size_t bytes, std::align_val_t align) { return allocate(bytes, static_cast<size_t>(align)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 1); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace plumb::testing {
namespace {

TEST(Allocation, DecodeStepsOfTheCpuBackendAllocateNothing) {
  ModelRunner* runner =
      shared_runner({.folder = model_path(), .backend = "cpu", .max_rows = 64, .sequences = 8, .context = 320});
  ASSERT_NE(runner, nullptr);
  const std::vector<int32_t>& ids = golden_prompt("needle_200").ids;
  std::vector<RunnerRow> rows;
  for (int s = 0; s < 8; ++s) {
    for (size_t begin = 0; begin < ids.size(); begin += 64) {
      rows.clear();
      for (size_t i = begin; i < std::min(begin + 64, ids.size()); ++i) rows.push_back({.sequence = s, .id = ids[i]});
      ASSERT_TRUE(runner->step(rows));
    }
  }
  for (const size_t batch : {size_t{1}, size_t{3}, size_t{8}}) {
    rows.clear();
    for (size_t s = 0; s < batch; ++s) rows.push_back({.sequence = static_cast<int>(s), .id = 5, .logits = true});
    allocations = 0;
    watching = true;
    const auto out = runner->step(rows);
    watching = false;
    ASSERT_TRUE(out);
    EXPECT_EQ(allocations.load(), 0) << "batch " << batch;
  }
}

}  // namespace
}  // namespace plumb::testing

// What a device's memory promises: zeroed when it is handed out, and nothing of that zeroing comes later.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/thread_pool.h"
#include "device/compute_device.h"

namespace plumb {
namespace {

TEST(DeviceMemory, AFreshBlockIsZeroAndKeepsWhatIsUploadedAtOnce) {
  ThreadPool pool(1);
  Result<ComputeDevice> device = open_device("cuda", 0, pool);
  if (!device) GTEST_SKIP() << device.error().to_string();
  const Memory& memory = device->memory;
  Stream& stream = device->stream;
  // Large enough that zeroing takes far longer than the upload of its end, were they not one after the other.
  constexpr size_t kBytes = size_t{1} << 30, kPiece = 4096;
  const auto staging = memory.allocate_staging(kPiece, "a test");
  ASSERT_TRUE(staging);
  std::fill_n(staging->get(), kPiece, std::byte{0x5a});
  for (int round = 0; round < 8; ++round) {
    const auto block = memory.allocate(kBytes, "a test");
    ASSERT_TRUE(block) << block.error().to_string();
    memory.upload(block->get() + kBytes - kPiece, staging->get(), kPiece, stream);
    memory.synchronise(stream);
    std::vector<std::byte> start(kPiece, std::byte{1}), end(kPiece);
    memory.download(start.data(), block->get(), kPiece, stream);
    memory.download(end.data(), block->get() + kBytes - kPiece, kPiece, stream);
    EXPECT_TRUE(std::ranges::all_of(start, [](std::byte b) { return b == std::byte{0}; })) << "round " << round;
    EXPECT_TRUE(std::ranges::all_of(end, [](std::byte b) { return b == std::byte{0x5a}; })) << "round " << round;
    memory.clear(block->get(), kBytes, stream);
  }
}

}  // namespace
}  // namespace plumb

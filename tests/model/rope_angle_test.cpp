// Angles at large positions follow the float32 sequence of the specification, not exact arithmetic (model.md 3.3).
#include <gtest/gtest.h>

#include <array>

#include "model/blocks.h"
#include "runners.h"
#include "support/paths.h"

namespace plumb::testing {
namespace {

struct Angle {
  int position;
  float cos;
  float sin;
};

TEST(RopeAngles, FollowTheFloat32SequenceAtLargePositions) {
  ModelRunner* runner = shared_runner({.folder = golden_path("random/base"), .max_rows = 64, .context = 128});
  ASSERT_NE(runner, nullptr);
  Forward& f = runner->forward_state();
  // Computed with numpy: cos and sin in float64 of float32(position) * inv_freq[1], for theta 10000 and 16 dimensions,
  // where inv_freq[1] = float32(1 / float32(10000^(2/16))) = 0.31622776.
  const std::array<Angle, 4> angles{{{7, -0.599437453f, 0.800421602f},
                                     {30011, -0.904801468f, 0.425833658f},
                                     {200003, 0.999062612f, -0.0432885386f},
                                     {1048571, -0.000604768665f, -0.999999817f}}};
  std::array<int32_t, 6> ids{0, 0, 0, 0, 1 << 30, -5};
  std::array<int32_t, 6> positions{};
  std::array<int32_t, 6> sequence{0, 0, 0, 0, -1, -1};
  for (size_t i = 0; i < angles.size(); ++i) positions[i] = angles[i].position;
  positions[4] = 1 << 30;
  positions[5] = -9;
  const int32_t page = 0;
  prepare_step(f, {.token_ids = ids.data(),
                   .paging = {.rows = 6,
                              .sequences = 1,
                              .positions = positions.data(),
                              .sequence = sequence.data(),
                              .page_table = &page,
                              .page_table_stride = 1}});
  const size_t half = f.buffers.inv_freq.size();
  ASSERT_EQ(half, 8u);
  EXPECT_FLOAT_EQ(f.buffers.inv_freq[1], 0.31622776f);
  for (size_t i = 0; i < angles.size(); ++i) {
    EXPECT_FLOAT_EQ(f.buffers.host_step.cos[i * half + 1], angles[i].cos) << "position " << positions[i];
    EXPECT_FLOAT_EQ(f.buffers.host_step.sin[i * half + 1], angles[i].sin) << "position " << positions[i];
    EXPECT_EQ(f.buffers.host_step.topk_positions[i], positions[i]);
  }
  for (const size_t padding : {size_t{4}, size_t{5}}) {
    EXPECT_EQ(f.buffers.host_step.ids[padding], 0);
    EXPECT_EQ(f.buffers.host_step.topk_positions[padding], -1);
    EXPECT_EQ(f.buffers.host_step.cos[padding * half + 3], 1.0f);
  }
}

}  // namespace
}  // namespace plumb::testing

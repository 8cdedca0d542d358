// The checker against planted faults: kernels that are wrong in the ways kernels are wrong must be found out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/reference.h"
#include "op_case.h"
#include "verify_kernel.h"

namespace plumb::testing {
namespace {

template <class Args>
void run_reference(Op op, const Args& args, Stream& stream) {
  reference_of(op).launch(&args, stream);
}

// A weight whose bytes `change` has altered, as a kernel that misreads them would see it.
struct Misread {
  Misread(const Weight& weight, void (*change)(std::vector<std::byte>& data, std::vector<std::byte>& scale, Weight& as))
      : copy(weight) {
    const EncodedMatrix& m = weight.source;
    const auto* from = static_cast<const std::byte*>(m.data);
    data.assign(from, from + encoded_data_bytes(m.format, m.n, m.k));
    const auto* scales = static_cast<const std::byte*>(m.scale);
    if (scales != nullptr) scale.assign(scales, scales + encoded_scale_bytes(m.format, m.n, m.k));
    change(data, scale, copy);
    copy.source.data = data.data();
    copy.source.scale = scale.empty() ? nullptr : scale.data();
  }
  std::vector<std::byte> data{}, scale{};
  Weight copy;
};

void swap_nibbles(std::vector<std::byte>& data, std::vector<std::byte>&, Weight& as) {
  if (as.format().element != DType::F4E2M1) return;
  for (std::byte& b : data) b = (b << 4) | (b >> 4);
}
void drop_global_scale(std::vector<std::byte>&, std::vector<std::byte>&, Weight& as) { as.source.global_scale = 1.0f; }
void forget_scales(std::vector<std::byte>&, std::vector<std::byte>&, Weight& as) {
  as.source.format = Format{as.format().element};
}
// A partial last block of rows takes the scale of the block before it.
void reuse_block_scale(std::vector<std::byte>&, std::vector<std::byte>& scale, Weight& as) {
  const int64_t rows = scale_rows(as.format(), as.n());
  const size_t row = static_cast<size_t>(scale_cols(as.format(), as.k())) * 4;
  if (as.format().block_n == 128 && rows > 1)
    std::copy_n(scale.end() - static_cast<std::ptrdiff_t>(2 * row), row,
                scale.end() - static_cast<std::ptrdiff_t>(row));
}
void flush_subnormal_scales(std::vector<std::byte>&, std::vector<std::byte>& scale, Weight& as) {
  if (as.format().scale != ScaleType::UE4M3) return;
  for (std::byte& b : scale) b = (b & std::byte{0x78}) == std::byte{0} ? std::byte{0} : b;
}

template <void (*change)(std::vector<std::byte>&, std::vector<std::byte>&, Weight&)>
void misread_linear(const LinearArgs& args, Stream& stream) {
  const Misread wrong(*args.w, change);
  LinearArgs changed = args;
  changed.w = &wrong.copy;
  run_reference(Op::Linear, changed, stream);
}

// Leaves its last sixteen columns as they were.
void leave_tile(const LinearArgs& args, Stream& stream) {
  std::vector<float> result(static_cast<size_t>(args.y.elements()));
  LinearArgs whole = args;
  whole.y = Tensor(result.data(), DType::F32, {args.y.dim(0), args.y.dim(1)});
  run_reference(Op::Linear, whole, stream);
  for (int64_t t = 0; t < args.y.dim(0); ++t) {
    const int64_t n = std::max<int64_t>(args.y.dim(1) - 16, 0);
    std::copy_n(whole.y.row_f32(t), n, args.y.row_f32(t));
  }
}
// A row's sum depends on how many rows there are.
void order_by_batch(const LinearArgs& args, Stream& stream) {
  run_reference(Op::Linear, args, stream);
  if (args.x.dim(0) < 2) return;
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    float* y = args.y.row_f32(t);
    for (int64_t i = 0; i < args.y.dim(1); ++i) y[i] = std::nextafterf(y[i], std::numeric_limits<float>::infinity());
  }
}
// One more column than there is.
void write_past_end(const LinearArgs& args, Stream& stream) {
  run_reference(Op::Linear, args, stream);
  const int64_t last = args.y.dim(0) - 1;
  if (args.y.ld > args.y.dim(1)) args.y.row_f32(last)[args.y.dim(1)] = 0.0f;
}
void add_padding_row(const LinearArgs& args, Stream& stream) {
  run_reference(Op::Linear, args, stream);
  if (args.x.dim(0) < 3) return;
  const float leak = args.x.row_f32(args.x.dim(0) / 2)[0];  // rows share a vector register
  args.y.row_f32(0)[0] += 0.0f * leak;
}

struct Planted {
  const char* name = "";
  Kernel kernel{};
};

Contract contract_of(Op op) {
  Contract contract = reference_of(op).contract;
  contract.name = "planted";
  const bool weighs =
      op == Op::Embed || op == Op::Linear || op == Op::MlaAttend || op == Op::Router || op == Op::Mlp || op == Op::Moe;
  contract.weight = weighs ? std::vector<Format>{kBf16, kFp8BlockF32, kNvfp4} : std::vector<Format>{};
  return contract;
}

// True when the checker finds something in at least one case.
bool found(const Kernel& kernel) {
  const Registry none;
  for (const std::unique_ptr<OpCase>& one : make_cases(kernel.contract)) {
    if (!verify_kernel(kernel, none, *one).empty()) return true;
  }
  return false;
}

// What finds faults finds none where there are none.
TEST(PlantedFault, IsNotFoundInTheReference) {
  for (int op = 0; op < kOpCount; ++op) {
    const Contract contract = contract_of(static_cast<Op>(op));
    EXPECT_FALSE(found({.contract = contract, .launch = reference_of(contract.op).launch})) << to_string(contract.op);
  }
}

TEST(PlantedFault, InLinearIsFound) {
  const Contract c = contract_of(Op::Linear);
  const std::vector<Planted> planted = {
      {"nibbles swapped", make_kernel<LinearArgs, misread_linear<swap_nibbles>>(c)},
      {"global scale left out", make_kernel<LinearArgs, misread_linear<drop_global_scale>>(c)},
      {"block scales left out", make_kernel<LinearArgs, misread_linear<forget_scales>>(c)},
      {"partial block takes its neighbour's scale", make_kernel<LinearArgs, misread_linear<reuse_block_scale>>(c)},
      {"subnormal block scales flushed", make_kernel<LinearArgs, misread_linear<flush_subnormal_scales>>(c)},
      {"a tile not written", make_kernel<LinearArgs, leave_tile>(c)},
      {"the batch changes a row", make_kernel<LinearArgs, order_by_batch>(c)},
      {"one float past the end", make_kernel<LinearArgs, write_past_end>(c)},
      {"a padding row leaks", make_kernel<LinearArgs, add_padding_row>(c)},
  };
  for (const Planted& fault : planted) EXPECT_TRUE(found(fault.kernel)) << fault.name;
}

// bf16 activations may cost what they cost; scale bytes one off may not hide behind that.
TEST(PlantedFault, IsFoundUnderABf16BoundToo) {
  Contract c = contract_of(Op::Linear);
  c.error_bound = {.c = 1, .unit = DType::BF16};
  c.accumulate = DType::F32;
  for (const Planted& fault : std::vector<Planted>{
           {"nibbles swapped", make_kernel<LinearArgs, misread_linear<swap_nibbles>>(c)},
           {"partial block takes its neighbour's scale", make_kernel<LinearArgs, misread_linear<reuse_block_scale>>(c)},
           {"a tile not written", make_kernel<LinearArgs, leave_tile>(c)}}) {
    EXPECT_TRUE(found(fault.kernel)) << fault.name;
  }
}

template <void (*change)(MlaAttendArgs&)>
void changed_attend(const MlaAttendArgs& args, Stream& stream) {
  MlaAttendArgs changed = args;
  change(changed);
  run_reference(Op::MlaAttend, changed, stream);
}
void scale_of_latent(MlaAttendArgs& args) {
  args.softmax_scale = 1.0f / std::sqrt(static_cast<float>(args.kv_b->k() + args.rope_dim));
}
void lose_last_key(MlaAttendArgs& args) { args.topk_indices.shape[1] -= 1; }
void row_stride_of_another_format(MlaAttendArgs& args) {
  if (args.kv.geometry.latent == KvFormat::Bf16) args.kv.geometry.rope_dim -= 2;  // rows read two elements too close
}

TEST(PlantedFault, InAttentionIsFound) {
  const Contract c = contract_of(Op::MlaAttend);
  EXPECT_TRUE(found(make_kernel<MlaAttendArgs, changed_attend<scale_of_latent>>(c)));
  EXPECT_TRUE(found(make_kernel<MlaAttendArgs, changed_attend<lose_last_key>>(c)));
  EXPECT_TRUE(found(make_kernel<MlaAttendArgs, changed_attend<row_stride_of_another_format>>(c)));
}

void ties_to_the_higher_position(const TopKArgs& args, Stream& stream) {
  for (int64_t r = 0; r < args.indices.dim(0); ++r) {
    std::vector<int32_t> order;
    for (int32_t j = 0; j <= args.positions[r]; ++j) order.push_back(j);
    const float* logits = args.logits.row_f32(r);
    std::sort(order.begin(), order.end(),
              [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a > b; });
    order.resize(std::min(order.size(), static_cast<size_t>(args.topk)));
    std::sort(order.begin(), order.end());
    std::fill_n(args.indices.row_i32(r), args.topk, -1);
    std::copy(order.begin(), order.end(), args.indices.row_i32(r));
  }
  static_cast<void>(stream);
}
// Scores beyond a row's positions 0 instead of -inf.
void zeros_beyond(const IndexerLogitsArgs& args, Stream& stream) {
  run_reference(Op::IndexerLogits, args, stream);
  for (int64_t r = 0; r < args.paging.rows; ++r) {
    if (args.paging.sequence[r] < 0) continue;
    for (int64_t j = args.paging.positions[r] + 1; j < args.logits.dim(1); ++j) args.logits.row_f32(r)[j] = 0.0f;
  }
}
// The ReLU after the sum over heads instead of before.
void late_relu(const IndexerLogitsArgs& args, Stream& stream) {
  run_reference(Op::IndexerLogits, args, stream);
  for (int64_t r = 0; r < args.paging.rows; ++r) {
    for (int64_t j = 0; j < args.logits.dim(1); ++j) {
      float& x = args.logits.row_f32(r)[j];
      if (args.paging.sequence[r] >= 0 && j <= args.paging.positions[r]) x = std::max(x, 0.0f);
    }
  }
}

TEST(PlantedFault, InSelectionIsFound) {
  EXPECT_TRUE(found(make_kernel<TopKArgs, ties_to_the_higher_position>(contract_of(Op::TopK))));
  EXPECT_TRUE(found(make_kernel<IndexerLogitsArgs, zeros_beyond>(contract_of(Op::IndexerLogits))));
  EXPECT_TRUE(found(make_kernel<IndexerLogitsArgs, late_relu>(contract_of(Op::IndexerLogits))));
}

// Writes the padding row's key to the page of the first sequence.
void write_padding_row(const IndexKeyWriteArgs& args, Stream& stream) {
  std::vector<int32_t> sequence(args.paging.sequence, args.paging.sequence + args.paging.rows);
  for (int32_t& s : sequence) s = std::max(s, 0);
  IndexKeyWriteArgs changed = args;
  changed.paging.sequence = sequence.data();
  run_reference(Op::IndexKeyWrite, changed, stream);
}
void other_eps(const IndexKeyWriteArgs& args, Stream& stream) {
  IndexKeyWriteArgs changed = args;
  changed.eps = 1e-5;
  run_reference(Op::IndexKeyWrite, changed, stream);
}
void no_bias(const IndexKeyWriteArgs& args, Stream& stream) {
  const std::vector<float> zeros(static_cast<size_t>(args.kv.geometry.index_head_dim));
  IndexKeyWriteArgs changed = args;
  changed.bias = zeros.data();
  run_reference(Op::IndexKeyWrite, changed, stream);
}

TEST(PlantedFault, InCacheWritesIsFound) {
  EXPECT_TRUE(found(make_kernel<IndexKeyWriteArgs, write_padding_row>(contract_of(Op::IndexKeyWrite))));
  EXPECT_TRUE(found(make_kernel<IndexKeyWriteArgs, other_eps>(contract_of(Op::IndexKeyWrite))));
  EXPECT_TRUE(found(make_kernel<IndexKeyWriteArgs, no_bias>(contract_of(Op::IndexKeyWrite))));
}

void bias_in_weights(const RouterArgs& args, Stream& stream) {
  run_reference(Op::Router, args, stream);
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    for (int64_t i = 0; i < args.experts.dim(1); ++i) {
      if (args.bias != nullptr) args.weights.row_f32(t)[i] += args.bias[args.experts.row_i32(t)[i]];
    }
  }
}
void forget_bias(const RouterArgs& args, Stream& stream) {
  RouterArgs changed = args;
  changed.bias = nullptr;
  run_reference(Op::Router, changed, stream);
}
// Gate's global scale for up as well.
void one_scale_for_both(const MlpArgs& args, Stream& stream) {
  Weight up = *args.up;
  up.source.global_scale = args.gate->source.global_scale;
  MlpArgs changed = args;
  changed.up = &up;
  run_reference(Op::Mlp, changed, stream);
}

TEST(PlantedFault, InRouterAndMlpIsFound) {
  EXPECT_TRUE(found(make_kernel<RouterArgs, bias_in_weights>(contract_of(Op::Router))));
  EXPECT_TRUE(found(make_kernel<RouterArgs, forget_bias>(contract_of(Op::Router))));
  EXPECT_TRUE(found(make_kernel<MlpArgs, one_scale_for_both>(contract_of(Op::Mlp))));
}

void draw_from_padding(const SampleArgs& args, Stream& stream) {
  SampleArgs changed = args;
  changed.vocab = static_cast<int>(args.logits.dim(1));
  run_reference(Op::Sample, changed, stream);
}

TEST(PlantedFault, InSamplingIsFound) {
  EXPECT_TRUE(found(make_kernel<SampleArgs, draw_from_padding>(contract_of(Op::Sample))));
}

}  // namespace
}  // namespace plumb::testing

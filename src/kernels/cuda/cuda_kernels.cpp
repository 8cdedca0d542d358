#include "kernels/cuda/cuda_kernels.h"

#include <algorithm>
#include <cstring>

#include "base/thread_pool.h"
#include "kernels/cuda/mma/mma_kernels.h"
#include "kernels/cuda/naive/naive.h"
#include "kernels/cuda/rows/row_kernels.h"

namespace plumb {
namespace {

constexpr int64_t kPartAlign = 256;  // as device_types.cuh
int64_t aligned(int64_t bytes) { return (bytes + kPartAlign - 1) / kPartAlign * kPartAlign; }

struct Parts {
  int64_t data, scale, total;
};
Parts parts_of(const EncodedMatrix& m) {
  const int64_t data = aligned(encoded_data_bytes(m.format, m.n, m.k));
  const int64_t scale = aligned(encoded_scale_bytes(m.format, m.n, m.k));
  return {data, scale, data + scale + (m.format.global_scale ? kPartAlign : 0)};
}

size_t row_major_bytes(const EncodedMatrix& m) { return static_cast<size_t>(parts_of(m).total); }

void fill_row_major(const EncodedMatrix& m, std::byte* out, int part, int parts) {
  const Parts p = parts_of(m);
  const auto copy = [&](std::byte* to, const void* from, int64_t bytes) {
    const Range range = split(bytes, part, parts);
    if (range.begin < range.end)
      std::memcpy(to + range.begin, static_cast<const std::byte*>(from) + range.begin,
                  static_cast<size_t>(range.end - range.begin));
  };
  copy(out, m.data, encoded_data_bytes(m.format, m.n, m.k));
  copy(out + p.data, m.scale, encoded_scale_bytes(m.format, m.n, m.k));
  if (m.format.global_scale && part == 0) std::memcpy(out + p.data + p.scale, &m.global_scale, sizeof m.global_scale);
}

}  // namespace

std::vector<Kernel> cuda_kernels() {
  std::vector<Kernel> kernels;
  cuda::add_naive_row_kernels(kernels);
  cuda::add_naive_linear_kernels(kernels);
  cuda::add_naive_cache_kernels(kernels);
  cuda::add_naive_attend_kernels(kernels);
  cuda::add_naive_select_kernels(kernels);
  cuda::add_mma_kernels(kernels);
  cuda::add_attend_kernels(kernels);
  cuda::add_indexer_kernels(kernels);
  cuda::add_topk_kernels(kernels);
  cuda::add_router_kernels(kernels);
  cuda::add_sample_kernels(kernels);
  kernels.push_back(cuda::sample_on_host());
  return kernels;
}

std::vector<Conversion> cuda_conversions() {
  return {{.to = Layout::CudaRowMajor,
           .formats = {kF32, kF16, kBf16, kFp8BlockF32, kFp8BlockUe8m0, kFp8Tensor, kFp8Channel, kNvfp4},
           .bytes = row_major_bytes,
           .fill = fill_row_major}};
}

}  // namespace plumb

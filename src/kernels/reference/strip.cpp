#include <algorithm>

#include "kernels/reference/common.h"
#include "tensor/dequant.h"

namespace plumb::reference {

void Strip::put(int64_t lane, const float* row) {
  for (int64_t i = 0; i < k_; ++i) lanes_[static_cast<size_t>(i * kStrip + lane)] = static_cast<double>(row[i]);
}

void Strip::load(const EncodedMatrix& matrix, int64_t first) {
  const int64_t count = std::min<int64_t>(kStrip, matrix.n - first);
  if (count < kStrip) std::fill(lanes_.begin(), lanes_.end(), 0.0);
  for (int64_t lane = 0; lane < count; ++lane) {
    decode_row(matrix, first + lane, row_.data());
    put(lane, row_.data());
  }
}

void Strip::load(const float* rows, int64_t count, int64_t ld) {
  if (count < kStrip) std::fill(lanes_.begin(), lanes_.end(), 0.0);
  for (int64_t lane = 0; lane < std::min<int64_t>(count, kStrip); ++lane) put(lane, rows + lane * ld);
}

}  // namespace plumb::reference

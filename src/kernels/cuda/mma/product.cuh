// One product of a weight, or of a layer's experts, with columns of activations.
#pragma once

#include "kernels/cuda/mma/columns.cuh"

namespace plumb::cuda {

// Which rows go through which matrix. Without groups: all through the first.
struct Groups {
  const int32_t* expert = nullptr;  // [groups], -1 beyond the last
  const int32_t* begin = nullptr;   // [groups + 1] into `slots`
  const int32_t* slots = nullptr;   // rows of the output, by expert
  int slots_per_row = 1;            // row of x = slot / slots_per_row
};

struct Product {
  Stack w[2] = {};
  Act y[2] = {};  // blockIdx.z chooses
  Columns x{};
  const float* bias = nullptr;
  int rows = 0;
  bool round = false;
  Groups groups{};
  int splits = 1;  // parts of k, of wide_product
};

// May start while the kernel before it still runs: it waits for that one before it reads the columns.
inline void launch_early(void (*kernel)(Product), dim3 grid, int threads, int shared_bytes, const Product& p,
                         cudaStream_t stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  const cudaError_t status = cudaLaunchKernelEx(&config, kernel, p);
  PLUMB_CHECK(status == cudaSuccess, cudaGetErrorString(status));
}

// wide.cu: for many rows. Sets p.splits.
void multiply_wide(const Mat& like, Product p, int groups, int matrices, cudaStream_t stream);

}  // namespace plumb::cuda

#include "kernels/cuda/cuda_kernels.h"

#include "kernels/cuda/library/library_kernels.h"
#include "kernels/cuda/mma/mma_kernels.h"
#include "kernels/cuda/naive/naive.h"
#include "kernels/cuda/ranks/rank_kernels.h"
#include "kernels/cuda/rows/row_kernels.h"

namespace plumb {

std::vector<Kernel> cuda_kernels() {
  std::vector<Kernel> kernels;
  cuda::add_naive_row_kernels(kernels);
  cuda::add_naive_linear_kernels(kernels);
  cuda::add_naive_cache_kernels(kernels);
  cuda::add_naive_attend_kernels(kernels);
  cuda::add_naive_select_kernels(kernels);
  cuda::add_library_kernels(kernels);
  cuda::add_mma_kernels(kernels);
  cuda::add_attend_kernels(kernels);
  cuda::add_indexer_kernels(kernels);
  cuda::add_fp8_indexer_kernels(kernels);
  cuda::add_norm_kernels(kernels);
  cuda::add_cache_write_kernels(kernels);
  cuda::add_single_kernels(kernels);
  cuda::add_topk_kernels(kernels);
  cuda::add_router_kernels(kernels);
  cuda::add_sample_kernels(kernels);
  kernels.push_back(cuda::sample_on_host());
  cuda::add_host_collectives(kernels);
  cuda::add_peer_sums(kernels);
  cuda::add_peer_gather(kernels);
  cuda::add_nccl(kernels);
  return kernels;
}

}  // namespace plumb

// Sums of magnitudes: the yardstick of every error bound. For y = sum a b a kernel may be off by
//   c * u * sum |a b|,
// u being the unit round-off of what it computes in and c fixed by its contract. Where an op is more than one sum, the
// functions below say how the error of the first travels to the last; `relative` is c * u. They decode whole weights,
// on the workers of `pool` or, if it is null, on the calling thread: the same sums either way.
#pragma once

#include <vector>

#include "ops/contract.h"

namespace plumb {

class ThreadPool;

// What one sum may lose: c u(unit) for what the contract reads, and one round-off of the accumulator for each of the
// `terms` added. Relative to the sum of magnitudes.
double relative_of(const Contract& contract, int64_t terms);
// Allowed error of one sum: the above times `magnitude`; one rounding of the result; the contract's floor and, since
// products of denormals are multiples of 2^-149, half of that for each term.
double bound_of(const Contract& contract, const Numerics& numerics, int64_t terms, double magnitude, double result);

// Relative distance of neighbouring bf16 numbers: what two roundings of nearly the same value may be apart.
inline constexpr double kBf16Step = 0x1p-7;

// [T, n]: sum |x w| + |bias|
std::vector<double> linear_magnitude(const LinearArgs& args, ThreadPool* pool);

// [T, experts]: sum |x w|
std::vector<double> router_magnitude(const RouterArgs& args, ThreadPool* pool);

// [T, hidden]. With G = sum |gate x|, U = sum |up x|: h = silu(g) u is off by at most relative * H, where
// H = 1.1 G (|u| + relative U) + |silu(g)| U + |h| (silu's slope is below 1.1), and y by relative * sum |down| H.
std::vector<double> mlp_magnitude(const MlpArgs& args, double relative, ThreadPool* pool);

// [T, hidden]: sum over the chosen experts of |weight| times the above, + |shared|.
std::vector<double> moe_magnitude(const MoeArgs& args, double relative, ThreadPool* pool);

// [R, columns]: sum_h |weight_h| weight_scale sum |q k| softmax_scale (ReLU does not enlarge an error). 0 beyond the
// row's positions and in padding rows.
std::vector<double> indexer_magnitude(const IndexerLogitsArgs& args, ThreadPool* pool);

// [T, heads * v]. A score is off by relative * S_j, S_j = scale (sum_c (sum_n |W_UK q|) |c_j| + sum |q_pe k_pe|), hence
// each probability by the factor 1 +- 2 relative max_j S_j, and the output by relative * sum_c |W_UV| sum_j p_j |c_j|
// (1 + 2 max_j S_j). 0 in padding rows.
std::vector<double> attend_magnitude(const MlaAttendArgs& args, ThreadPool* pool);

}  // namespace plumb

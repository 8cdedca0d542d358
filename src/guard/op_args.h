// An op's arguments as one value, and what is in them: which tensors are read, which are written, how rows are cut out.
#pragma once

#include <variant>

#include "ops/args.h"

namespace plumb {

// In the order of Op.
using AnyArgs =
    std::variant<EmbedArgs, RmsNormArgs, AddRmsNormArgs, LinearArgs, RopeArgs, KvWriteArgs, IndexQueryArgs,
                 IndexKeyWriteArgs, IndexerLogitsArgs, TopKArgs, MlaAttendArgs, RouterArgs, MlpArgs, MoeArgs,
                 GatherRowsArgs, FiniteRowsArgs, DraftSetArgs, SampleArgs, AllReduceArgs, GatherColumnsArgs>;
static_assert(std::variant_size_v<AnyArgs> == kOpCount);

// `args`: the struct of `op`.
AnyArgs any_args(Op op, const void* args);
inline const void* raw(const AnyArgs& args) {
  return std::visit([](const auto& a) -> const void* { return &a; }, args);
}
Op op_of(const AnyArgs& args);
int64_t rows_of(const AnyArgs& args);

enum class Role : uint8_t { In, Out, InOut };

// f(name, tensor, role) for each tensor with a row per row of the op. Tensors without data are left out. The caches, a
// gather's source and the sampler's results are no such tensors.
template <class F>
void for_tensors(AnyArgs& args, F&& f);

// Rows [first, first + count) as an op of their own.
AnyArgs slice_rows(const AnyArgs& args, int64_t first, int64_t count);

namespace op_args {

template <class F>
void each(EmbedArgs& a, F& f) {
  f("y", a.y, Role::Out);
}
template <class F>
void each(RmsNormArgs& a, F& f) {
  f("x", a.x, Role::In);
  f("y", a.y, Role::Out);
}
template <class F>
void each(AddRmsNormArgs& a, F& f) {
  f("residual", a.residual, Role::InOut);
  f("delta", a.delta, Role::In);
  f("y", a.y, Role::Out);
}
template <class F>
void each(LinearArgs& a, F& f) {
  f("x", a.x, Role::In);
  f("y", a.y, Role::Out);
}
template <class F>
void each(RopeArgs& a, F& f) {
  f("x", a.x, Role::InOut);
}
template <class F>
void each(KvWriteArgs& a, F& f) {
  f("kv_a", a.kv_a, Role::In);
  f("latent", a.latent, Role::Out);
}
template <class F>
void each(IndexQueryArgs& a, F& f) {
  f("q", a.q, Role::InOut);
}
template <class F>
void each(IndexKeyWriteArgs& a, F& f) {
  f("k", a.k, Role::InOut);
}
template <class F>
void each(IndexerLogitsArgs& a, F& f) {
  f("q", a.q, Role::In);
  f("weights", a.weights, Role::In);
  f("logits", a.logits, Role::Out);
}
template <class F>
void each(TopKArgs& a, F& f) {
  f("logits", a.logits, Role::In);
  f("indices", a.indices, Role::Out);
}
template <class F>
void each(MlaAttendArgs& a, F& f) {
  f("q", a.q, Role::In);
  f("topk_indices", a.topk_indices, Role::In);
  f("out", a.out, Role::Out);
}
template <class F>
void each(RouterArgs& a, F& f) {
  f("x", a.x, Role::In);
  f("logits", a.logits, Role::Out);
  f("experts", a.experts, Role::Out);
  f("weights", a.weights, Role::Out);
}
template <class F>
void each(MlpArgs& a, F& f) {
  f("x", a.x, Role::In);
  f("y", a.y, Role::Out);
}
template <class F>
void each(MoeArgs& a, F& f) {
  f("x", a.x, Role::In);
  f("experts", a.experts, Role::In);
  f("weights", a.weights, Role::In);
  f("shared", a.shared, Role::In);
  f("y", a.y, Role::Out);
}
template <class F>
void each(GatherRowsArgs& a, F& f) {
  f("y", a.y, Role::Out);
}
template <class F>
void each(FiniteRowsArgs& a, F& f) {
  f("x", a.x, Role::In);
  f("finite", a.finite, Role::Out);
}
template <class F>
void each(DraftSetArgs& a, F& f) {
  f("selection", a.selection, a.extend ? Role::Out : Role::In);
}
template <class F>
void each(SampleArgs& a, F& f) {
  f("logits", a.logits, Role::InOut);
}
template <class F>
void each(AllReduceArgs& a, F& f) {
  f("x", a.x, Role::InOut);
}
template <class F>
void each(GatherColumnsArgs& a, F& f) {
  f("x", a.x, Role::In);
  f("y", a.y, Role::Out);
}

}  // namespace op_args

template <class F>
void for_tensors(AnyArgs& args, F&& f) {
  const auto present = [&f](const char* name, Tensor& tensor, Role role) {
    if (tensor.data != nullptr) f(name, tensor, role);
  };
  std::visit([&](auto& a) { op_args::each(a, present); }, args);
}

}  // namespace plumb

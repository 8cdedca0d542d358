#include "guard/op_args.h"

namespace plumb {
namespace {

template <size_t index = 0>
AnyArgs take(Op op, const void* args) {
  if constexpr (index + 1 < std::variant_size_v<AnyArgs>) {
    if (static_cast<size_t>(op) != index) return take<index + 1>(op, args);
  }
  return *static_cast<const std::variant_alternative_t<index, AnyArgs>*>(args);
}

template <class Args>
concept Paged = requires(Args a) {
  a.paging;
};
template <class Args>
concept Turned = requires(Args a) {
  a.cos;
};

template <class Args>
void advance(Args& a, int64_t first, int64_t count) {
  if constexpr (Paged<Args>) {
    a.paging.rows = static_cast<int>(count);
    a.paging.positions += first;
    a.paging.sequence += first;
  }
  if constexpr (Turned<Args>) {
    int rope_dim = 0;
    if constexpr (requires { a.rope_dim; })
      rope_dim = a.rope_dim;
    else
      rope_dim = a.kv.geometry.rope_dim;
    a.cos += first * (rope_dim / 2);
    a.sin += first * (rope_dim / 2);
  }
}
void advance(EmbedArgs& a, int64_t first, int64_t) { a.ids += first; }
void advance(TopKArgs& a, int64_t first, int64_t) { a.positions += first; }
void advance(GatherRowsArgs& a, int64_t first, int64_t) { a.rows += first; }
void advance(RouterArgs& a, int64_t first, int64_t) {
  if (a.sequence != nullptr) a.sequence += first;
}
void advance(SampleArgs& a, int64_t first, int64_t count) {
  a.rows = a.rows.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  a.out = a.out.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
}

}  // namespace

AnyArgs any_args(Op op, const void* args) { return take(op, args); }
Op op_of(const AnyArgs& args) { return static_cast<Op>(args.index()); }

int64_t rows_of(const AnyArgs& args) {
  AnyArgs copy = args;
  int64_t rows = 0;
  for_tensors(copy, [&](const char*, const Tensor& tensor, Role) { rows = tensor.dim(0); });
  return rows;
}

AnyArgs slice_rows(const AnyArgs& args, int64_t first, int64_t count) {
  AnyArgs part = args;
  for_tensors(part, [&](const char*, Tensor& tensor, Role) { tensor = tensor.slice(first, count); });
  std::visit([&](auto& a) { advance(a, first, count); }, part);
  return part;
}

}  // namespace plumb

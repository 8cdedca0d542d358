#include "engine/weight_probe.h"

#include <algorithm>

#include "guard/op_record.h"

namespace plumb {
namespace {

constexpr int64_t kColumns = 16;  // the smallest block that has a scale of its own

// What the rows of a probe read, in `storage`. `next`: block of columns, or expert, that is next in turn.

void aim(LinearArgs& a, int64_t& next, Storage& storage) {
  const Tensor real = a.x;
  a.x = storage.like(real);
  const int64_t k = real.dim(1), blocks = (k + kColumns - 1) / kColumns;
  for (int64_t r = 0; r < real.dim(0); ++r) {
    const int64_t first = next++ % blocks * kColumns;
    std::copy_n(real.row_f32(r) + first, std::min(kColumns, k - first), a.x.row_f32(r) + first);
  }
}

void aim(RouterArgs& a, int64_t& next, Storage& storage) {
  a.x = storage.like(a.x);
  for (int64_t r = 0; r < a.x.dim(0); ++r) decode_row(a.gate->source, next++ % a.gate->n(), a.x.row_f32(r));
}

// A rank may have fewer experts than a row chooses.
void aim(MoeArgs& a, int64_t& next, Storage& storage) {
  const auto here = static_cast<int64_t>(a.gate.size());
  const Tensor real = a.experts;
  a.experts = storage.like(real);
  for (int64_t r = 0; r < real.dim(0); ++r)
    for (int64_t i = 0; i < real.dim(1); ++i)
      a.experts.row_i32(r)[i] = i < here ? a.first_expert + static_cast<int32_t>(next++ % here) : -1;
}

template <class Args>
void probe(const OpCall& call, Executor& executor, int64_t& next) {
  Storage storage;
  AnyArgs any = *static_cast<const Args*>(call.args);
  for_tensors(any, [&](const char*, Tensor& tensor, Role role) {
    if (role == Role::Out) tensor = storage.like(tensor);
  });
  Args& args = std::get<Args>(any);
  aim(args, next, storage);
  executor.run(call.site, call.rows, args, call.origin);
}

}  // namespace

void WeightProbe::after(const OpCall& call, Executor& executor) {
  const Op op = call.kernel.contract.op;
  if (executor.memory().where != Where::Host) return;  // what a probe reads and leaves is the host's
  if (running_ || (op != Op::Linear && op != Op::Router && op != Op::Moe) || !wanted_(call.site)) return;
  Turn& turn = turns_[call.site];
  if (turn.launches++ >= launches_) return;
  running_ = true;
  if (op == Op::Linear) probe<LinearArgs>(call, executor, turn.next);
  if (op == Op::Router) probe<RouterArgs>(call, executor, turn.next);
  if (op == Op::Moe) probe<MoeArgs>(call, executor, turn.next);
  running_ = false;
}

}  // namespace plumb

#include "guard/witness.h"

#include <algorithm>
#include <deque>

#include "base/check.h"

namespace plumb {
namespace {

// The weights of one launch in the layout another kernel reads.
class Relaid {
 public:
  Relaid(const Registry& registry, Layout layout) : registry_(registry), layout_(layout) {}

  Status weight(const Weight*& weight) {
    if (weight == nullptr || weight->layout == layout_) return Ok{};
    weights_.push_back(*weight);
    PLUMB_TRY_STATUS(relay(weights_.back()));
    weight = &weights_.back();
    return Ok{};
  }
  // Of all experts only those that are used.
  Status experts(std::span<const Weight>& part, const Tensor& chosen, int32_t first) {
    if (part.empty() || part.front().layout == layout_) return Ok{};
    lists_.emplace_back(part.begin(), part.end());
    for (int64_t r = 0; r < chosen.dim(0); ++r)
      for (int64_t i = 0; i < chosen.dim(1); ++i) {
        const int32_t expert = chosen.row_i32(r)[i] - first;
        if (expert < 0 || expert >= static_cast<int64_t>(part.size())) continue;
        Weight& weight = lists_.back()[static_cast<size_t>(expert)];
        if (weight.layout != layout_) PLUMB_TRY_STATUS(relay(weight));
      }
    part = lists_.back();
    return Ok{};
  }

 private:
  Status relay(Weight& weight) {
    weight.layout = layout_;
    weight.prepared = nullptr;
    if (layout_ == Layout::RowMajor) return Ok{};
    const Conversion* conversion = registry_.conversion(layout_, weight.format());
    if (conversion == nullptr)
      return Error{Code::Unsupported,
                   weight.name + " can't be laid out as " + to_string(layout_),
                   "there is no conversion from " + weight.format().to_string(),
                   {}};
    std::byte* out = storage_.take(conversion->bytes(weight.source));
    conversion->fill(weight.source, out, 0, 1);
    weight.prepared = out;
    return Ok{};
  }

  const Registry& registry_;
  Layout layout_;
  std::deque<Weight> weights_{};
  std::deque<std::vector<Weight>> lists_{};
  Storage storage_{};
};

template <class Args>
Status relay_args(Args&, Relaid&) {
  return Ok{};
}
Status relay_args(EmbedArgs& a, Relaid& to) { return to.weight(a.table); }
Status relay_args(LinearArgs& a, Relaid& to) { return to.weight(a.w); }
Status relay_args(MlaAttendArgs& a, Relaid& to) { return to.weight(a.kv_b); }
Status relay_args(RouterArgs& a, Relaid& to) { return to.weight(a.gate); }
Status relay_args(MlpArgs& a, Relaid& to) {
  PLUMB_TRY_STATUS(to.weight(a.gate));
  PLUMB_TRY_STATUS(to.weight(a.up));
  return to.weight(a.down);
}
Status relay_args(MoeArgs& a, Relaid& to) {
  PLUMB_TRY_STATUS(to.experts(a.gate, a.experts, a.first_expert));
  PLUMB_TRY_STATUS(to.experts(a.up, a.experts, a.first_expert));
  return to.experts(a.down, a.experts, a.first_expert);
}

}  // namespace

const Choice& Witness::choice(SiteId site, int64_t rows) const {
  const std::vector<Choice>& choices = plan_.sites[static_cast<size_t>(site)].choices;
  for (const Choice& choice : choices)
    if (rows <= choice.rows.m_hi) return choice;
  return choices.back();
}

const Kernel& Witness::reference(SiteId site) const {
  for (const Candidate& candidate : *choice(site, 1).candidates)
    if (candidate.kernel->contract.reference) return *candidate.kernel;
  PLUMB_CHECK(false, "an op without a reference kernel");
}

std::vector<const Kernel*> Witness::accepted(const OpRecord& record) const {
  std::vector<const Kernel*> kernels;
  for (const Candidate& candidate : *choice(record.site(), record.rows()).candidates)
    if (candidate.refusals.empty()) kernels.push_back(candidate.kernel);
  return kernels;
}

Status Witness::launch(const Kernel& kernel, SiteId site, AnyArgs args) const {
  const Contract& contract = kernel.contract;
  if (contract.arch >= Isa::Sm90a)
    return Error{Code::Unsupported, contract.name + " doesn't run on a CPU", "records lie in host memory", {}};
  Relaid relaid(registry_, contract.weight_layout);
  // The reference decodes from the file's own bytes, whatever else was prepared.
  if (!contract.reference) PLUMB_TRY_STATUS(std::visit([&](auto& a) { return relay_args(a, relaid); }, args));
  Call call = plan_.sites[static_cast<size_t>(site)].decl.call;
  call.m_lo = call.m_hi = rows_of(args);
  Storage storage;
  const size_t workspace = contract.workspace != nullptr ? contract.workspace(call) : 0;
  Stream stream{.pool = pool_, .workspace = nullptr, .workspace_bytes = workspace};
  if (workspace > 0) stream.workspace = storage.take(workspace);
  kernel.launch(raw(args), stream);
  return Ok{};
}

Judgement Witness::judge(const OpRecord& record) const {
  Storage storage;
  const AnyArgs want = record.again(storage);
  PLUMB_CHECK(static_cast<bool>(launch(reference(record.site()), record.site(), want)), "the reference runs anywhere");
  return judge_outputs(record.kernel().contract, record.before(), record.have(), want);
}

Result<Judgement> Witness::judge(const OpRecord& record, const Kernel& kernel) const {
  Storage storage;
  const AnyArgs want = record.again(storage);
  PLUMB_CHECK(static_cast<bool>(launch(reference(record.site()), record.site(), want)), "the reference runs anywhere");
  const AnyArgs have = record.again(storage);
  PLUMB_TRY_STATUS(launch(kernel, record.site(), have));
  return judge_outputs(kernel.contract, record.before(), have, want);
}

}  // namespace plumb

#include "guard/witness.h"

#include <algorithm>
#include <deque>

#include "base/check.h"
#include "guard/relocate.h"

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

// Device memory that grows to what the largest launch needs and stays. Host memory that kernels reach stands in where
// the device has none left: far slower, the same results.
std::byte* Witness::room(size_t bytes) const {
  if (bytes > room_bytes_) {
    room_.reset();
    const Memory& memory = device_->memory;
    Result<std::shared_ptr<std::byte>> block = memory.allocate(bytes, "an op that is run again");
    if (!block) block = memory.allocate_staging(bytes, "an op that is run again");
    PLUMB_CHECK(static_cast<bool>(block), block.error().to_string());
    room_ = *std::move(block);
    room_bytes_ = bytes;
  }
  return room_.get();
}

// What the kernel reads and writes goes to the device's own memory: kernels that read their operands many times, as the
// plain ones do, would wait for the bus.
AnyArgs Witness::launch_on_device(const Kernel& kernel, const Call& call, const AnyArgs& args, Storage& storage) const {
  const Memory& memory = device_->memory;
  memory.enter(device_->stream);
  const size_t bytes = relocate(args, nullptr, nullptr).bytes;
  const size_t workspace = kernel.contract.workspace != nullptr ? kernel.contract.workspace(call) : 0;
  std::byte* const here = storage.take(bytes);
  std::byte* const there = room(bytes + workspace);
  const AnyArgs result = relocate(args, here, here).args;
  const AnyArgs moved = relocate(result, nullptr, there).args;
  Stream stream = device_->stream;
  stream.workspace = there + bytes;
  stream.workspace_bytes = workspace;
  memory.upload(there, here, bytes, stream);
  kernel.launch(raw(moved), stream);
  memory.synchronise(stream);
  memory.download(here, there, bytes, stream);
  return result;
}

Result<AnyArgs> Witness::launch(const Kernel& kernel, SiteId site, AnyArgs args, Storage& storage) const {
  const Contract& contract = kernel.contract;
  Call call = plan_.sites[static_cast<size_t>(site)].decl.call;
  call.m_lo = call.m_hi = rows_of(args);
  if (contract.arch >= Isa::Sm90a) {
    if (device_ && kernel.launch != nullptr) return launch_on_device(kernel, call, args, storage);
    return Error{Code::Unsupported, contract.name + " runs on a GPU", "this run has none", {"--backend cuda"}};
  }
  Relaid relaid(registry_, contract.weight_layout);
  AnyArgs launched = args;  // with weights that end here; who asked keeps the model's
  // The reference decodes from the file's own bytes, whatever else was prepared.
  if (!contract.reference) PLUMB_TRY_STATUS(std::visit([&](auto& a) { return relay_args(a, relaid); }, launched));
  Storage scratch;
  const size_t workspace = contract.workspace != nullptr ? contract.workspace(call) : 0;
  Stream stream{.pool = pool_, .workspace = nullptr, .workspace_bytes = workspace};
  if (workspace > 0) stream.workspace = scratch.take(workspace);
  kernel.launch(raw(launched), stream);
  return args;
}

// What results are held against: the reference, or the accepted kernel that no plan would choose.
const Kernel& Witness::yardstick(const OpRecord& record) const {
  const Kernel* plain = nullptr;
  if (device_ && device_->plain_kernels)
    for (const Kernel* kernel : accepted(record))
      if (plain == nullptr || kernel->contract.preference < plain->contract.preference) plain = kernel;
  return plain != nullptr ? *plain : reference(record.site());
}

AnyArgs Witness::truth(const OpRecord& record, Storage& storage) const {
  Result<AnyArgs> want = launch(yardstick(record), record.site(), record.again(storage), storage);
  PLUMB_CHECK(static_cast<bool>(want), "the reference runs anywhere");
  return *std::move(want);
}

Judgement Witness::judge(const OpRecord& record) const {
  Storage results;
  return judge_outputs(record.kernel().contract, record.before(), record.have(), truth(record, results), pool_);
}

Result<Judgement> Witness::judge(const OpRecord& record, const Kernel& kernel) const {
  Storage results;
  const AnyArgs want = truth(record, results);
  PLUMB_TRY(const AnyArgs have, launch(kernel, record.site(), record.again(results), results));
  return judge_outputs(kernel.contract, record.before(), have, want, pool_);
}

std::optional<WitnessDevice> witness_device(Executor& executor) {
  if (executor.memory().where == Where::Host) return std::nullopt;
  return WitnessDevice{.memory = executor.memory(), .stream = executor.stream()};
}

std::optional<WitnessDevice> witness_device_beside(Executor& executor) {
  std::optional<WitnessDevice> device = witness_device(executor);
  if (!device) return device;
  device->plain_kernels = true;
  device->owner = device->memory.new_stream(executor.stream());
  device->stream = {.handle = device->owner.get()};
  return device;
}

}  // namespace plumb

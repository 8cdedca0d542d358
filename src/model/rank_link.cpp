#include "model/rank_link.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "comm/collectives.h"
#include "model/buffers.h"

namespace plumb {
namespace {

using Outputs = std::array<Tensor, 2>;  // of an op with one, the second has no data

// Ops that all ranks compute alike, and whole; and what they leave.
struct Replicated {
  Op op;
  Outputs (*outputs)(const void* args);
};
constexpr std::array<Replicated, 4> kReplicated{{
    {Op::RmsNorm, [](const void* args) { return Outputs{static_cast<const RmsNormArgs*>(args)->y}; }},
    {Op::AddRmsNorm,
     [](const void* args) {
       const auto& a = *static_cast<const AddRmsNormArgs*>(args);
       return Outputs{a.residual, a.y};
     }},
    {Op::Router,
     [](const void* args) {
       const auto& a = *static_cast<const RouterArgs*>(args);
       return Outputs{a.experts, a.weights};
     }},
    {Op::TopK, [](const void* args) { return Outputs{static_cast<const TopKArgs*>(args)->indices}; }},
}};

const Replicated* find_replicated(Op op) {
  const auto* const found = std::ranges::find(kReplicated, op, &Replicated::op);
  return found == kReplicated.end() ? nullptr : found;
}

// Not for strangers: two ranks' bits are compared, nobody chooses them.
uint64_t hash_rows(const Tensor& tensor, const OpCall& call, const Paging& rows, uint64_t hash) {
  const auto columns = static_cast<size_t>(tensor.dim(1));
  for (int64_t r = 0; r < tensor.dim(0); ++r) {
    const int32_t step_row = call.origin.row(r);
    if (step_row < 0 || step_row >= rows.rows || rows.sequence[step_row] < 0) continue;
    const auto* row = static_cast<const std::byte*>(tensor.data) + r * tensor.ld * bits(tensor.dtype) / 8;
    for (size_t i = 0; i < columns; ++i) {
      uint32_t word = 0;
      std::memcpy(&word, row + i * sizeof word, sizeof word);
      hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
      hash ^= hash >> 29;
    }
  }
  return hash;
}

}  // namespace

bool is_replicated(Op op) { return find_replicated(op) != nullptr; }

void ReplicaWatch::after(const OpCall& call, Executor& executor) {
  const Replicated* const replicated = find_replicated(call.kernel.contract.op);
  if (replicated == nullptr) return;
  uint64_t hash = 0;
  std::vector<std::byte> storage;
  for (const Tensor& tensor : replicated->outputs(call.args))
    if (tensor.data != nullptr) hash = hash_rows(executor.to_host(tensor, storage), call, rows_, hash);
  seen_.push_back({.site = call.site, .rows = static_cast<int32_t>(call.rows), .hash = hash});
}

RankLink::RankLink(Communicator& comm, Executor& executor) : comm_(comm), executor_(executor) {
  executor_.set_halt(&comm.failed_flag());
}

RankLink::~RankLink() {
  if (watching_) executor_.remove_observer(watch_);
  executor_.set_halt(nullptr);
}

void RankLink::set_times(Milliseconds deadline, Milliseconds patience) {
  deadline_ = deadline;
  patience_ = patience;
  comm_.set_deadline(deadline);
}

// The transport is the stream's too, as long as there is something in it.
bool RankLink::failed() const {
  if (!comm_.failed() && comm_.links_failed()) {
    settle();
    comm_.look();
  }
  return comm_.failed();
}

// On a GPU the exchanges of the step under way are its stream's; this thread's come when they are over.
void RankLink::settle() const {
  if (executor_.memory().where != Where::Host) executor_.memory().synchronise(executor_.stream());
}

void RankLink::send(const Message& message) {
  settle();
  Message told = message;
  told.deadline_ms = deadline_.count();
  told.patience_ms = patience_.count();
  static_cast<void>(broadcast(comm_, 0, std::as_writable_bytes(std::span(&told, 1))));
}

// The pages that the step's rows see, where they are not what the others know.
void RankLink::note_changes(const Paging& paging) {
  changes_.clear();
  if (paging.sequences != table_sequences_ || paging.page_table_stride != table_stride_) keep_table(paging);
  longest_.assign(static_cast<size_t>(paging.sequences), -1);
  for (int row = 0; row < paging.rows; ++row) {
    if (paging.sequence[row] < 0) continue;
    int32_t& longest = longest_[static_cast<size_t>(paging.sequence[row])];
    longest = std::max(longest, paging.positions[row]);
  }
  for (int32_t s = 0; s < paging.sequences; ++s) {
    const int32_t longest = longest_[static_cast<size_t>(s)];
    if (longest < 0) continue;
    for (int32_t page = 0; page <= longest / paging.page_tokens; ++page) {
      const int32_t at = s * paging.page_table_stride + page;
      if (table_[static_cast<size_t>(at)] == paging.page_table[at]) continue;
      table_[static_cast<size_t>(at)] = paging.page_table[at];
      changes_.insert(changes_.end(), {at, paging.page_table[at]});
    }
  }
}

void RankLink::keep_table(const Paging& paging) {
  table_sequences_ = paging.sequences;
  table_stride_ = paging.page_table_stride;
  table_.assign(static_cast<size_t>(table_sequences_) * static_cast<size_t>(table_stride_), -1);
}

void RankLink::announce(Message message, const StepInput& step) {
  if (!leads() || failed()) return;
  const Paging& paging = step.paging;
  note_changes(paging);
  message.rows = paging.rows;
  message.logit_rows = static_cast<int32_t>(step.logit_rows.size());
  message.hidden_rows = static_cast<int32_t>(step.hidden_rows.size());
  message.sequences = paging.sequences;
  message.stride = paging.page_table_stride;
  message.page_tokens = paging.page_tokens;
  message.changes = static_cast<int32_t>(changes_.size() / 2);
  message.watched = watch_every_ > 0 && steps_++ % static_cast<uint64_t>(watch_every_) == 0 ? 1 : 0;
  payload_.clear();
  for (const int32_t* list : {step.token_ids, paging.positions, paging.sequence})
    payload_.insert(payload_.end(), list, list + paging.rows);
  payload_.insert(payload_.end(), step.logit_rows.begin(), step.logit_rows.end());
  payload_.insert(payload_.end(), step.hidden_rows.begin(), step.hidden_rows.end());
  payload_.insert(payload_.end(), changes_.begin(), changes_.end());
  send(message);
  static_cast<void>(broadcast(comm_, 0, std::as_writable_bytes(std::span(payload_))));
  begin_watch(message.watched != 0);
}

void RankLink::announce_step(const StepInput& step) { announce({.kind = Kind::Step}, step); }

void RankLink::announce_draft(const StepInput& step, bool continues_draft, bool reuse_selection) {
  announce({.kind = Kind::Draft, .continues_draft = continues_draft, .reuse_selection = reuse_selection}, step);
}

void RankLink::announce_wipe(int32_t page) {
  if (leads()) send({.kind = Kind::Wipe, .page = page});
}

void RankLink::beat() {
  if (!leads()) return;
  send({.kind = Kind::Beat});
  static_cast<void>(barrier(comm_));
}

void RankLink::finish() {
  if (leads()) send({.kind = Kind::End});
}

void RankLink::begin_watch(bool watched) {
  watching_ = watched;
  if (!watched) return;
  watch_.clear();
  executor_.add_observer(watch_);
}

void RankLink::end_step() {
  if (!watching_) return;
  watching_ = false;
  executor_.remove_observer(watch_);
  if (!failed()) compare();
  ++watched_;
}

void RankLink::compare() {
  settle();
  const std::span<const ReplicaWatch::Seen> mine = watch_.seen();
  const auto ranks = static_cast<size_t>(comm_.size());
  std::vector<ReplicaWatch::Seen> all(mine.size() * ranks);
  if (!all_gather(comm_, std::as_bytes(mine), std::as_writable_bytes(std::span(all)))) return;
  for (size_t i = 0; i < mine.size(); ++i) {
    const auto hash = [&](size_t rank) { return all[rank * mine.size() + i].hash; };
    const auto alike = [&](size_t rank) {
      size_t count = 0;
      for (size_t r = 0; r < ranks; ++r) count += hash(r) == hash(rank) ? 1 : 0;
      return count;
    };
    size_t most = 0;  // a rank of the largest group that agrees
    for (size_t r = 1; r < ranks; ++r)
      if (alike(r) > alike(most)) most = r;
    for (size_t r = 0; r < ranks; ++r) {
      if (hash(r) == hash(most)) continue;
      found_by_all_ = true;
      return comm_.fail(differs(mine[i], static_cast<int>(r), static_cast<int>(most), alike(most)));
    }
  }
}

Error RankLink::differs(const ReplicaWatch::Seen& seen, int rank, int like, size_t alike) const {
  const Plan& plan = executor_.plan();
  const SiteDecl& decl = plan.sites[static_cast<size_t>(seen.site)].decl;
  const std::string other = comm_.name_of(rank), one = comm_.name_of(like);
  return {Code::Verification,
          other + " has other bits than " + one + " at " + decl.name,
          to_string(decl.call.op) + ", kernel " + plan.kernel(seen.site, seen.rows).contract.name +
              ", in a launch of " + std::to_string(seen.rows) + (seen.rows == 1 ? " row" : " rows") +
              ": every rank computes it alike from the same inputs, and " +
              (alike > 1 ? std::to_string(alike) + " of " + std::to_string(comm_.size()) + " agree"
                         : std::string("of two it can't be said which is right")) +
              ". Ranks that differ select different tokens",
          {"fewer ranks (--tp), without the machine or GPU of " + (alike > 1 ? other : other + " or of " + one),
           "plumb doctor there: an unequal machine, or broken memory, computes other bits"}};
}

StepInput RankLink::input_of(const Message& message) const {
  const int32_t* at = payload_.data();
  const auto take = [&at](int32_t count) {
    const int32_t* list = at;
    at += count;
    return list;
  };
  StepInput step;
  step.token_ids = take(message.rows);
  step.paging = {.rows = message.rows,
                 .sequences = message.sequences,
                 .positions = take(message.rows),
                 .sequence = take(message.rows),
                 .page_table = table_.data(),
                 .page_table_stride = message.stride,
                 .page_tokens = message.page_tokens};
  step.logit_rows = {take(message.logit_rows), static_cast<size_t>(message.logit_rows)};
  step.hidden_rows = {take(message.hidden_rows), static_cast<size_t>(message.hidden_rows)};
  return step;
}

Status RankLink::take_step(const Message& message, Forward& forward) {
  const int64_t words =
      int64_t{3} * message.rows + message.logit_rows + message.hidden_rows + int64_t{2} * message.changes;
  payload_.resize(static_cast<size_t>(words));
  PLUMB_TRY_STATUS(broadcast(comm_, 0, std::as_writable_bytes(std::span(payload_))));
  if (message.sequences != table_sequences_ || message.stride != table_stride_)
    keep_table({.sequences = message.sequences, .page_table_stride = message.stride});
  const size_t first = payload_.size() - 2 * static_cast<size_t>(message.changes);
  for (size_t i = first; i < payload_.size(); i += 2) table_[static_cast<size_t>(payload_[i])] = payload_[i + 1];
  begin_watch(message.watched != 0);
  const StepInput step = input_of(message);
  if (message.kind == Kind::Step) {
    plumb::forward(forward, step);
  } else {
    const ForwardBuffers& b = forward.buffers;
    mtp_forward(forward, step, message.continues_draft != 0 ? b.z : b.hidden, message.reuse_selection != 0);
  }
  return failed() ? Status(*comm_.failure()) : Status(Ok{});
}

// What a step needs is there before it begins, but for the lists of the largest one yet.
Status RankLink::follow(Forward& forward) {
  PLUMB_CHECK(!leads(), "rank 0 leads");
  try {
    return follow_messages(forward);
  } catch (const std::bad_alloc&) {
    comm_.fail({Code::Peer, comm_.name_of(comm_.rank()) + " is out of memory", "", {}});
    return *comm_.failure();
  }
}

Status RankLink::follow_messages(Forward& forward) {
  while (true) {
    Message message;
    settle();
    comm_.set_deadline(patience_);
    PLUMB_TRY_STATUS(broadcast(comm_, 0, std::as_writable_bytes(std::span(&message, 1))));
    deadline_ = Milliseconds(message.deadline_ms);
    patience_ = Milliseconds(message.patience_ms);
    comm_.set_deadline(deadline_);
    switch (message.kind) {
      case Kind::Step:
      case Kind::Draft:
        PLUMB_TRY_STATUS(take_step(message, forward));
        break;
      case Kind::Wipe:
        forward.cache.wipe(message.page, forward.executor.memory(), forward.executor.stream());
        break;
      case Kind::Beat:
        PLUMB_TRY_STATUS(barrier(comm_));
        break;
      case Kind::End:
        return Ok{};
    }
  }
}

}  // namespace plumb

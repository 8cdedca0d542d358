// What becomes of sequences whose rows the guard or the shadow found wrong.
#include <algorithm>

#include "engine/engine.h"
#include "model/rank_link.h"

namespace plumb {

RowOwner Engine::owner_of(int row) const {
  const auto item = std::ranges::find_if(
      batch_.items, [row](const BatchItem& i) { return row >= i.first_row && row < i.first_row + i.count; });
  const Sequence& s = *item->sequence;
  const int position = item->begin + row - item->first_row;
  const size_t known = std::min(s.tokens.size(), static_cast<size_t>(position) + 1);
  return {.sequence = s.arrival,
          .request_id = s.request.request_id,
          .position = position,
          .tokens = std::span(s.tokens).first(known)};
}

// What was found without the sentinels: the place that wrote it is not known, the one that showed it is.
RowFault Engine::unseen_fault(SiteId site, int row, const char* tensor) const {
  return {.row = row, .site = site, .kernel = &forward_.executor.plan().kernel(site, 1), .tensor = tensor};
}

void Engine::record_fault(Sequence& s, const RowFault& fault, int position) {
  const size_t known = std::min(s.tokens.size(), static_cast<size_t>(position) + 1);
  end_faulty(s, guard_.report(fault, {.sequence = s.arrival,
                                      .request_id = s.request.request_id,
                                      .position = position,
                                      .tokens = std::span(s.tokens).first(known)}));
}

// A sequence that has just ended otherwise keeps its ending; its pages are not shared all the same.
void Engine::end_faulty(Sequence& s, Incident incident) {
  ++counts_.numerical_faults;
  s.poisoned = true;
  if (s.ending.finish != FinishReason::None) return;
  s.ending = {.finish = FinishReason::Error,
              .error = Error{Code::Verification, "numerical fault", incident.to_string(), {}},
              .incident = std::make_shared<const Incident>(std::move(incident))};
}

// The draft layer's rows are rows of the same sequences: its cache is shared with the same pages.
void Engine::record_draft_faults() {
  for (const RowFault& fault : guard_.faults()) {
    if (fault.pass == 0) continue;
    for (const BatchItem& item : batch_.items)
      if (item.sequence->slot == fault.sequence && !item.sequence->poisoned)
        record_fault(*item.sequence, fault, fault.position);
  }
}

// The shadow's findings come when the step is long over: the request ends if it still runs.
void Engine::end_drifted() {
  for (Guard::Late& late : guard_.take_late()) {
    const auto found = std::ranges::find_if(sequences_, [&](const auto& s) { return s->arrival == late.sequence; });
    if (found == sequences_.end()) {
      ++counts_.numerical_faults;
      continue;
    }
    end_faulty(**found, std::move(late.incident));
    finish(**found, std::move((*found)->ending));
  }
}

void Engine::wipe_quarantine() {
  if (pool_.quarantined().empty()) return;
  for (const int32_t page : pool_.quarantined()) {
    forward_.cache.wipe(page, forward_.executor.memory(), forward_.executor.stream());
    if (forward_.link != nullptr) forward_.link->announce_wipe(page);
  }
  pool_.readmit_all();
}

bool Engine::ranks_failed() const { return forward_.link != nullptr && forward_.link->failed(); }

// While the engine runs there is a message for the other ranks every second, so that they can tell a leader that has
// stopped from one that has nothing to do. Between engines (loading, checks) there may be none for long.
void Engine::watch_ranks(bool watch) {
  if (forward_.link == nullptr || forward_.link->failed()) return;
  const std::chrono::milliseconds deadline(options_.rank_timeout_ms);
  forward_.link->set_times(deadline, watch ? deadline + kIdle : std::chrono::milliseconds(0));
  forward_.link->beat();
}

// Every request ends here, those that have just come too.
void Engine::end_all_lost() {
  if (!lost_) {
    lost_why_ = *forward_.link->comm().failure();
    lost_ = true;
  }
  while (!sequences_.empty()) {
    Sequence& s = *sequences_.back();
    finish(s, {.finish = FinishReason::Error,
               .error = Error{Code::Peer, "the model has lost a rank", lost_why_->what, {}}});
  }
}

}  // namespace plumb

// What becomes of sequences whose rows the guard or the shadow found wrong.
#include <algorithm>

#include "engine/engine.h"

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
  const int layers = forward_.config.num_hidden_layers + (drafter_ ? 1 : 0);
  const auto clear = [&](std::byte* pages, int32_t page, int64_t bytes) {
    forward_.executor.memory().clear(pages + page * bytes, static_cast<size_t>(bytes), forward_.executor.stream());
  };
  for (int layer = 0; layer < layers; ++layer) {
    const KvView view = forward_.cache.view(layer);
    for (const int32_t page : pool_.quarantined()) {
      clear(view.latent, page, view.geometry.latent_page_bytes());
      if (view.index_keys != nullptr) clear(view.index_keys, page, view.geometry.index_page_bytes());
    }
  }
  pool_.readmit_all();
}

}  // namespace plumb

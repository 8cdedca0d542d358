#include "serve/running_requests.h"

#include "serve/generation.h"

namespace plumb {

void RunningRequests::add(const std::shared_ptr<Generation>& generation, const std::shared_ptr<Exchange>& exchange,
                          std::string answer_id) {
  const std::lock_guard lock(mutex_);
  entries_[generation.get()] = {.generation = generation, .exchange = exchange, .answer_id = std::move(answer_id)};
}

void RunningRequests::remove(const Generation* generation) {
  const std::lock_guard lock(mutex_);
  entries_.erase(generation);
}

int RunningRequests::abort(std::string_view name, bool all) {
  const std::lock_guard lock(mutex_);
  int told = 0;
  for (const auto& [key, entry] : entries_) {
    if (!all && entry.answer_id != name && entry.exchange->request().request_id != name) continue;
    ++told;
    entry.exchange->post([generation = entry.generation] {
      if (const auto alive = generation.lock()) alive->abort();
    });
  }
  return told;
}

}  // namespace plumb

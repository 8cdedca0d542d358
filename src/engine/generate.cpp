#include "engine/generate.h"

#include <atomic>

namespace plumb {

Result<Generated> generate(EngineApi& engine, GenerateRequest request,
                           const std::function<bool(const TokenEvent&)>& on_event) {
  // Shared with on_ready, which may still be running in the engine thread when the last event has been taken.
  const auto arrived = std::make_shared<std::atomic<uint32_t>>(0);
  const auto stream = std::make_shared<TokenStream>();
  stream->on_ready = [arrived] {
    arrived->fetch_add(1);
    arrived->notify_one();
  };
  PLUMB_TRY_STATUS(engine.submit(std::move(request), stream));

  Generated result;
  std::vector<TokenEvent> batch;
  bool ended = false;
  while (!ended) {
    const uint32_t seen = arrived->load();
    ended = stream->take(batch);
    if (batch.empty() && !ended) arrived->wait(seen);
    for (TokenEvent& event : batch) {
      if (on_event && !on_event(event)) stream->cancel();
      if (event.id >= 0) result.ids.push_back(event.id);
      result.events.push_back(std::move(event));
    }
  }
  if (result.events.back().error) return *std::move(result.events.back().error);
  result.usage = stream->usage;
  result.prompt_logprobs = std::move(stream->prompt_logprobs);
  return result;
}

}  // namespace plumb

// One request, start to end, for callers that can wait: the command line and start-up checks.
#pragma once

#include <functional>
#include <vector>

#include "engine/engine_api.h"

namespace plumb {

struct Generated {
  std::vector<int32_t> ids{};        // without the stop token
  std::vector<TokenEvent> events{};  // in order; the last one ends the text
  StreamUsage usage{};
  std::vector<PromptLogprob> prompt_logprobs{};
};

// Submits and waits for the end. `on_event` sees every event as it comes and may return false to cancel. An Error: the
// request was refused, or it ended with one.
Result<Generated> generate(EngineApi& engine, GenerateRequest request,
                           const std::function<bool(const TokenEvent&)>& on_event = {});

}  // namespace plumb

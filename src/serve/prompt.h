// Chat messages to token ids: the checkpoint's template, then the tokenizer. Runs on a pool thread.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "serve/context.h"
#include "serve/markup_parser.h"
#include "serve/openai_request.h"

namespace plumb {

struct RenderedPrompt {
  std::string text{};
  std::vector<int32_t> ids{};
  ReasoningStart reasoning = ReasoningStart::MayBegin;
};

// An ApiError is the caller's (400): the template refused, or the checkpoint has none.
std::variant<RenderedPrompt, ApiError> render_chat(const ServeContext& context, const ServedModel& model,
                                                   const ChatRequest& chat);

// What the end of a prompt says about the text that follows it.
ReasoningStart reasoning_start(std::string_view text, const std::vector<int32_t>& ids, const TagIds& tags);

}  // namespace plumb

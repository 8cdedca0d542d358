// The messages of a chat and the prompts of a completion. Included by .cpp files only.
#pragma once

#include <vector>

#include "serve/fields.h"
#include "serve/openai_request.h"

namespace plumb {

void read_messages(Fields& fields, std::vector<ChatMessage>& messages);
void read_prompts(Fields& fields, std::vector<Prompt>& prompts, const RequestLimits& limits);

}  // namespace plumb

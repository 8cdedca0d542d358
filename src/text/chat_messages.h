// From an OpenAI request's `messages` to what chat templates expect (api.md 36, 38, 65; model.md 6.1).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "text/chat_template.h"

namespace plumb {

// Checks roles and contents, then: content parts that are all text become one string; `arguments` of tool calls, a
// string of JSON, becomes an object; `reasoning` and `reasoning_content` stand for each other; "developer" becomes
// "system" when the template doesn't know it. Errors name the place, e.g. messages[2].content.
Result<nlohmann::ordered_json> prepare_messages(const nlohmann::ordered_json& messages, const ChatTemplate& chat);

}  // namespace plumb

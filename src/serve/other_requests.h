// Requests of /v1/messages, /v1/responses and /generate as the chat or text completion they mean.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "serve/api_error.h"

namespace plumb {

// The body of an equivalent completion; an ApiError names the field as the caller wrote it. What is not offered here
// (images, server tools, stored conversations) is 400. Unknown fields go along and are listed as ignored.
struct EquivalentBody {
  std::string body{};
  std::string echo_json{};  // /v1/responses: what the answer repeats, as ,"name":value...
  std::string rid{};        // /generate
};
using Equivalent = std::variant<EquivalentBody, ApiError>;
Equivalent chat_of_messages(std::string_view body);
Equivalent chat_of_responses(std::string_view body);
Equivalent completion_of_generate(std::string_view body);

}  // namespace plumb

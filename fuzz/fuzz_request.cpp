// Request bodies: whatever the bytes, each parser gives values within their ranges, or an error that is valid JSON
// itself.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "serve/openai_request.h"
#include "serve/other_requests.h"
#include "serve/strict_json.h"

#include <nlohmann/json.hpp>

namespace {

using namespace plumb;  // NOLINT(google-build-using-namespace)

constexpr RequestLimits kLimits{.vocab_size = 300, .max_context = 4096};

void check_error(const ApiError& error) {
  PLUMB_CHECK(error.status == 400, "a bad body is the caller's mistake");
  const auto body = nlohmann::json::parse(error_json(error), nullptr, /*allow_exceptions=*/false);
  PLUMB_CHECK(body.contains("error") && body["error"]["message"].is_string(), "the error body is broken");
}

void check_common(const CommonFields& common) {
  const SamplingParams& s = common.sampling;
  PLUMB_CHECK(s.temperature >= 0 && s.temperature <= 2, "temperature");
  PLUMB_CHECK(s.top_p > 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1, "nucleus");
  PLUMB_CHECK(s.top_k >= 0 && s.top_k < kLimits.vocab_size, "top_k");
  PLUMB_CHECK(std::abs(s.presence_penalty) <= 2 && std::abs(s.frequency_penalty) <= 2, "penalties");
  PLUMB_CHECK(s.repetition_penalty > 0 && s.logprobs >= -1 && s.logprobs <= 20, "penalty or logprobs");
  for (const auto& [id, bias] : s.logit_bias) {
    PLUMB_CHECK(id >= 0 && id < kLimits.vocab_size && std::abs(bias) <= 100, "logit_bias");
  }
  for (const int32_t id : common.stop_token_ids) PLUMB_CHECK(id >= 0 && id < kLimits.vocab_size, "stop_token_ids");
  for (const std::string& stop : common.stop) PLUMB_CHECK(!stop.empty(), "stop");
  PLUMB_CHECK(common.n >= 1 && common.n <= 128 && common.min_tokens >= 0, "n or min_tokens");
  PLUMB_CHECK(!common.include_usage || common.stream, "stream_options");
  for (const char c : ignored_fields_header(common)) PLUMB_CHECK(c >= 0x20 && c < 0x7f, "header text");
}

void check_chat(const ParsedChat& parsed, bool generates) {
  if (const auto* error = std::get_if<ApiError>(&parsed)) return check_error(*error);
  const auto& chat = std::get<ChatRequest>(parsed);
  if (generates) check_common(chat.common);
  PLUMB_CHECK(!chat.messages.empty(), "messages");
  for (const ChatMessage& message : chat.messages) {
    PLUMB_CHECK(!message.role.empty(), "role");
    for (const ToolCallMessage& call : message.tool_calls) {
      PLUMB_CHECK(parse_strict_json(call.arguments_json).has_value(), "arguments");
    }
  }
  if (!chat.template_kwargs_json.empty())
    PLUMB_CHECK(parse_strict_json(chat.template_kwargs_json).has_value(), "kwargs");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check_chat(parse_chat_request(body, kLimits), /*generates=*/true);
  check_chat(parse_template_request(body, kLimits), /*generates=*/false);
  const ParsedCompletion parsed = parse_completion_request(body, kLimits);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    check_error(*error);
  } else {
    const auto& completion = std::get<CompletionRequest>(parsed);
    check_common(completion.common);
    PLUMB_CHECK(!completion.prompts.empty(), "prompts");
  }
  for (const auto& equivalent : {chat_of_messages(body), chat_of_responses(body), completion_of_generate(body)}) {
    if (const auto* error = std::get_if<ApiError>(&equivalent)) {
      check_error(*error);
    } else {
      PLUMB_CHECK(parse_strict_json(std::get<EquivalentBody>(equivalent).body, 200).has_value(), "the equivalent body");
    }
  }
  return 0;
}

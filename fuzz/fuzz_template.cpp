// A chat template from anywhere over messages from anywhere. Input: the template, a zero byte, JSON messages; without a
// zero byte the whole input is a template.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "text/chat_messages.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using Json = nlohmann::ordered_json;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const auto chat = plumb::ChatTemplate::parse(input.substr(0, zero), "");
  if (!chat) return 0;
  Json messages = Json::array({{{"role", "user"}, {"content", "a <think> b"}},
                               {{"role", "assistant"}, {"content", nullptr}},
                               {{"role", "tool"}, {"content", {{{"type", "text"}, {"text", "x"}}}}}});
  if (zero != std::string_view::npos) {
    messages = Json::parse(input.substr(zero + 1), nullptr, /*allow_exceptions=*/false);
    if (messages.is_discarded()) return 0;
    const auto prepared = plumb::prepare_messages(messages, *chat);
    if (prepared) messages = *prepared;
  }
  const auto rendered = chat->render(messages, Json(), {{"n", 3}, {"l", {1, 2, 3}}}, {.now = 0});
  if (!rendered) return 0;
  size_t done = 0;  // spans are sorted, disjoint and within the text
  for (const plumb::Span& span : rendered->untrusted) {
    if (span.begin < done || span.end <= span.begin || span.end > rendered->text.size()) __builtin_trap();
    done = span.end;
  }
  return 0;
}

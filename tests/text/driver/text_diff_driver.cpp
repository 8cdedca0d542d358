// One JSON case a line on standard input, one JSON answer a line on standard output; see tools/text_diff.
//   text_diff_driver tokenizer DIR   {"text": str} -> {"ids": [...], "decoded": str, "skipped": str}
//                                    {"ids": [...]} -> {"decoded": str, "skipped": str}
//   text_diff_driver template        {"template", "messages", "tools", "kwargs"} -> {"text": str} or {"error": str}
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace {

using Json = nlohmann::ordered_json;

int fail(const plumb::Error& error) {
  std::cerr << error.to_string() << "\n";
  return 1;
}

Json tokenize(const plumb::Tokenizer& tokenizer, const Json& request) {
  const auto ids = tokenizer.encode(request["text"].get_ref<const std::string&>());
  if (!ids) return {{"error", ids.error().to_string()}};
  return {{"ids", *ids}, {"decoded", tokenizer.decode(*ids, false)}, {"skipped", tokenizer.decode(*ids, true)}};
}

Json detokenize(const plumb::Tokenizer& tokenizer, const Json& request) {
  const auto ids = request["ids"].get<std::vector<int32_t>>();
  return {{"decoded", tokenizer.decode(ids, false)}, {"skipped", tokenizer.decode(ids, true)}};
}

Json render(const Json& request) {
  const auto chat = plumb::ChatTemplate::parse(request["template"].get_ref<const std::string&>(), "");
  if (!chat) return {{"error", chat.error().to_string()}};
  const auto rendered =
      chat->render(request["messages"], request.value("tools", Json()), request.value("kwargs", Json()));
  if (!rendered) return {{"error", rendered.error().to_string()}};
  return {{"text", rendered->text}};
}

template <class Answer>
int answer_lines(const Answer& answer) {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line, nullptr, false);
    if (request.is_discarded()) return 1;
    std::cout << answer(request).dump() << "\n";
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "template") return answer_lines(render);
  if (mode != "tokenizer" || argc != 3) {
    std::cerr << "usage: text_diff_driver tokenizer DIR | template\n";
    return 1;
  }
  const auto tokenizer = plumb::Tokenizer::load(argv[2]);
  if (!tokenizer) return fail(tokenizer.error());
  return answer_lines([&](const Json& request) {
    return request.contains("ids") ? detokenize(*tokenizer, request) : tokenize(*tokenizer, request);
  });
}

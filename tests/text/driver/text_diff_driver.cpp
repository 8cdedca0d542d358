// One JSON case a line on standard input, one JSON answer a line on standard output; see tools/text_diff.
//   text_diff_driver tokenizer DIR   {"text": str} -> {"ids": [...], "decoded": str, "skipped": str}
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

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

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::string(argv[1]) != "tokenizer") {
    std::cerr << "usage: text_diff_driver tokenizer DIR\n";
    return 1;
  }
  std::ios::sync_with_stdio(false);
  const auto tokenizer = plumb::Tokenizer::load(argv[2]);
  if (!tokenizer) return fail(tokenizer.error());
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line, nullptr, false);
    if (request.is_discarded()) return 1;
    const Json answer = request.contains("ids") ? detokenize(*tokenizer, request) : tokenize(*tokenizer, request);
    std::cout << answer.dump() << "\n";
  }
  return 0;
}

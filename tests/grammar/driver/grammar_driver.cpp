// Writes texts of a schema, for a comparison with another validator: reads lines {"schema":...,"seed":n,"count":n,
// "check":[texts]} and answers each with {"texts":[...],"takes":[bools]} or {"error":"..."}. The texts are drawn token
// by token through the masks; one that finds no end in time is left out.
#include <iostream>
#include <random>
#include <string>

#include <nlohmann/json.hpp>

#include "grammar/compile.h"

namespace {

using nlohmann::ordered_json;
using plumb::grammar::Vocabulary;

std::shared_ptr<const Vocabulary> vocabulary() {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  for (const char* token : {"the ", "\",\"", "\":",   "\": \"", "[]", "{}",    "true",     "null",    "false", "é",
                            "😀",    "\\n",   "\\u00", "00",     "12", "},{",   "\"}",      "\"]",     "]}",    "abc",
                            "ab",   "Zz",    "-1",    ".5",     "e9", "2024-", "\xf0\x9f", "\x98\x80"}) {
    bytes.emplace_back(token);
  }
  return std::make_shared<const Vocabulary>(std::move(bytes), std::vector<Vocabulary::Tag>{});
}

// Early on any token that may follow; later those that close what is open.
int32_t pick(const std::vector<int32_t>& choices, size_t length, const Vocabulary& v, std::mt19937& random) {
  if (length > 60) {
    for (const char* wanted : {"\"", "}", "]", "null", "n", "u", "l", ":", ",", "0", "t", "\"}", "\"]"}) {
      for (const int32_t id : choices)
        if (v.bytes(id) == wanted) return id;
    }
  }
  return choices[random() % choices.size()];
}

bool draw(const std::shared_ptr<plumb::grammar::Grammar>& grammar, std::mt19937& random, std::string& text) {
  plumb::grammar::Cursor cursor(grammar);
  const Vocabulary& v = grammar->vocabulary();
  std::vector<uint32_t> mask(v.words());
  while (text.size() < 4000) {
    const auto next = cursor.next({}, mask);
    if (next.may_end && (!next.possible || random() % 4 == 0 || text.size() > 60)) return true;
    std::vector<int32_t> choices;
    for (int32_t id = 0; id < v.size(); ++id)
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0) choices.push_back(id);
    if (choices.empty()) return false;
    const int32_t id = pick(choices, text.size(), v, random);
    if (!cursor.accept(id)) return false;
    text += v.bytes(id);
  }
  return false;
}

ordered_json answer(const ordered_json& request, const std::shared_ptr<const Vocabulary>& v) {
  using plumb::grammar::ContentShape;
  const auto grammar = plumb::grammar::compile(
      {.content = {.kind = ContentShape::Kind::JsonSchema, .source = request["schema"].dump()}}, v, 0);
  if (!grammar) return {{"error", grammar.error().what}};
  std::mt19937 random(request.value("seed", 1u));
  ordered_json texts = ordered_json::array(), takes = ordered_json::array();
  for (int i = 0; i < request.value("count", 0); ++i) {
    std::string text;
    if (draw(*grammar, random, text)) texts.push_back(text);
  }
  for (const auto& text : request.value("check", ordered_json::array())) {
    takes.push_back((*grammar)->matches(text.get<std::string>()));
  }
  return {{"texts", std::move(texts)}, {"takes", std::move(takes)}};
}

}  // namespace

int main() {
  const auto v = vocabulary();
  std::string line;
  while (std::getline(std::cin, line)) {
    const ordered_json request = ordered_json::parse(line, nullptr, false);
    std::cout << answer(request, v).dump(-1, ' ', false, ordered_json::error_handler_t::replace) << std::endl;
  }
  return 0;
}

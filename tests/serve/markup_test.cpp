// Reasoning, content and calls from a model's text: every cut gives the same pieces.
#include "serve/markup_parser.h"

#include <gtest/gtest.h>

#include <random>

#include <nlohmann/json.hpp>

namespace plumb {
namespace {

using nlohmann::json;
using Start = ReasoningStart;

std::shared_ptr<const ToolSchemas> tools() {
  return std::make_shared<const ToolSchemas>(std::vector<ToolSpec>{
      {.name = "f",
       .parameters_json =
           R"({"type":"object","properties":{"s":{"type":"string"},"n":{"type":"integer"},"x":{"type":"number"},
        "b":{"type":"boolean"},"o":{"anyOf":[{"type":"object"},{"type":"null"}]},"sn":{"type":["string","null"]},"e":{"enum":["1","2"]},
        "r":{"$ref":"#/$defs/t"},"any":{}},"$defs":{"t":{"type":"array"}}})"},
      {.name = "f_long"}});
}

// What the pieces add up to.
struct Sum {
  std::string reasoning{}, content{};
  std::vector<std::pair<std::string, std::string>> calls{};
  bool malformed = false;
  friend bool operator==(const Sum&, const Sum&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Sum& sum) {
    out << "reasoning '" << sum.reasoning << "' content '" << sum.content << "'";
    for (const auto& [name, arguments] : sum.calls) out << " call " << name << ' ' << arguments;
    return out << (sum.malformed ? " malformed" : "");
  }
};

// A symbol: a character, or a tag as its own token.
struct Symbol {
  std::string text{};
  bool tag = false;
  MarkupTag which{};
};

std::vector<Symbol> symbols(std::string_view text, bool tags_are_tokens) {
  std::vector<Symbol> out;
  while (!text.empty()) {
    size_t used = 0;
    for (int i = 0; i < kMarkupTags && tags_are_tokens; ++i) {
      const auto tag = static_cast<MarkupTag>(i);
      if (!text.starts_with(tag_text(tag))) continue;
      used = tag_text(tag).size();
      out.push_back({std::string(tag_text(tag)), true, tag});
    }
    if (used == 0) {  // a whole character, as the detokeniser gives them
      do ++used;
      while (used < text.size() && (static_cast<unsigned char>(text[used]) & 0xc0) == 0x80);
      out.push_back({std::string(text.substr(0, used))});
    }
    text.remove_prefix(used);
  }
  return out;
}

class Feeder {
 public:
  Feeder(Start start, bool values_end_by_text)
      : parser_({.start = start, .drop_think_tags = true, .tools = tools(), .values_end_by_text = values_end_by_text}) {
  }
  void text(std::string_view part) { add(parser_.push(part)); }
  void tag(MarkupTag which) { add(parser_.tag(which)); }
  Sum end(bool cut = false) {
    add(parser_.flush(cut));
    sum_.malformed = parser_.malformed();
    return sum_;
  }

 private:
  void add(const MarkupPiece& piece) {
    sum_.reasoning += piece.reasoning;
    sum_.content += piece.content;
    for (const CallDelta& call : piece.calls) {
      if (!call.name.empty()) {
        EXPECT_EQ(call.index, static_cast<int>(sum_.calls.size()));
        sum_.calls.emplace_back(call.name, call.arguments);
      } else {
        ASSERT_EQ(call.index + 1, static_cast<int>(sum_.calls.size()));
        sum_.calls.back().second += call.arguments;
      }
    }
  }
  MarkupParser parser_;
  Sum sum_{};
};

// Feeds the symbols in runs that end at the given places.
Sum feed(const std::vector<Symbol>& all, Start start, bool values_end_by_text, const std::vector<size_t>& cuts,
         bool cut = false) {
  Feeder feeder(start, values_end_by_text);
  std::string run;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool here = std::find(cuts.begin(), cuts.end(), i) != cuts.end();
    if (all[i].tag || here) {
      if (!run.empty()) feeder.text(run);
      run.clear();
    }
    if (all[i].tag) {
      feeder.tag(all[i].which);
    } else {
      run += all[i].text;
    }
  }
  if (!run.empty()) feeder.text(run);
  return feeder.end(cut);
}

std::string argument(const std::string& key, const std::string& value) {
  return "<arg_key>" + key + "</arg_key><arg_value>" + value + "</arg_value>";
}
std::string call(const std::string& inner) { return "<tool_call>" + inner + "</tool_call>"; }

struct Case {
  Start start = Start::Off;
  std::string text{};
  Sum want{};
};

std::vector<Case> cases() {
  return {
      {Start::InReasoning, "a<b</think>c", {"a<b", "c"}},
      {Start::InReasoning, "<think>why</think>", {"why", ""}},
      {Start::InReasoning, "no end </thin", {"no end </thin", ""}},
      {Start::InReasoning, "</think>now", {"", "now"}},
      {Start::MayBegin, "<think>a</think>b", {"a", "b"}},
      {Start::MayBegin, "<thinking>", {"", "<thinking>"}},
      {Start::InReasoning, "x" + call("f"), {"x", "", {{"f", "{}"}}}},
      {Start::Off,
       "look: " + call("f" + argument("s", "Paris")) + " done",
       {"", "look:  done", {{"f", R"({"s":"Paris"})"}}}},
      {Start::Off,
       call("f_long") + call("f\n" + argument("n", " 42 ")),
       {"", "", {{"f_long", "{}"}, {"f", R"({"n":42})"}}}},
      {Start::Off,
       call("\nf \n" + argument(" s ", "a\n \"b\" \xc3\xa9\\") + "\n"),
       {"", "", {{"f", R"({"s":"a\n \"b\" é\\"})"}}}},
      {Start::Off,
       call("f" + argument("s", "007") + argument("n", "7") + argument("x", "2.50") + argument("b", "true") +
            argument("o", "null")),
       {"", "", {{"f", R"({"s":"007","n":7,"x":2.50,"b":true,"o":null})"}}}},
      {Start::Off,
       call("f" + argument("sn", "null") + argument("e", "1") + argument("r", "[1, 2]") + argument("any", "007") +
            argument("new", "{\"k\": 1}")),
       {"", "", {{"f", R"({"sn":null,"e":"1","r":[1,2],"any":"007","new":{"k":1}})"}}}},
      {Start::Off,
       call("f" + argument("n", "seven") + argument("s", "")),
       {"", "", {{"f", R"({"n":"seven","s":""})"}}}},
      {Start::Off, call("f" + argument("n", "3.0")), {"", "", {{"f", R"({"n":3})"}}}},
      // Not a call after all: all of it is content, and marked.
      {Start::Off, call("g" + argument("s", "x")), {"", call("g" + argument("s", "x")), {}, true}},
      {Start::Off, call(""), {"", call(""), {}, true}},
      {Start::Off, call("f<arg_value>x</arg_value>"), {"", call("f<arg_value>x</arg_value>"), {}, true}},
      {Start::Off, "<tool_call>f", {"", "<tool_call>f", {}, true}},
      {Start::Off, "<tool_call>f" + call("f_long"), {"", "<tool_call>f", {{"f_long", "{}"}}, true}},
      {Start::Off, "<tool_call>f<arg_key>s</arg_key>", {"", "<tool_call>f<arg_key>s</arg_key>", {}, true}},
      // Announced already: the arguments are closed, the rest is content.
      {Start::Off, call("f" + argument("n", "1") + "oops"), {"", "oops</tool_call>", {{"f", R"({"n":1})"}}, true}},
      {Start::Off,
       call("f" + argument("n", "1") + argument("n", "2")),
       {"", argument("n", "2") + "</tool_call>", {{"f", R"({"n":1})"}}, true}},
      {Start::Off,
       "<tool_call>f" + argument("s", "a"),
       {"", "", {{"f", R"({"s":"a"})"}}}},  // only the closing tag is missing
      {Start::Off, "a < b <tool", {"", "a < b <tool"}},
      {Start::Off, "</tool_call> <arg_key>", {"", "</tool_call> <arg_key>"}},
  };
}

TEST(Markup, EveryPairOfCutsGivesTheSamePieces) {
  for (const Case& c : cases()) {
    for (const bool tokens : {false, true}) {
      const std::vector<Symbol> all = symbols(c.text, tokens);
      for (size_t i = 0; i <= all.size(); ++i) {
        for (size_t k = i; k <= std::min(all.size(), i + 14); ++k)
          ASSERT_EQ(feed(all, c.start, !tokens, {i, k}), c.want) << c.text << (tokens ? " by token" : "");
      }
    }
  }
}

TEST(Markup, RandomTextsAreTheSameHoweverTheyAreCut) {
  static const char* const kParts[] = {"<think>",    "</think>",   "<tool_call>", "</tool_call>",
                                       "<arg_key>",  "</arg_key>", "<arg_value>", "</arg_value>",
                                       "f",          "f_long",     "s",           "n",
                                       "12",         "\"",         "<",           "</",
                                       "tool_call>", "é",          " ",           "\n",
                                       "x"};
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t n = random() % 30; n > 0; --n) text += kParts[random() % std::size(kParts)];
    const bool tokens = random() % 2 == 0, values = random() % 2 == 0, cut = random() % 2 == 0;
    const auto start = static_cast<Start>(random() % 3);
    const std::vector<Symbol> all = symbols(text, tokens);
    std::vector<size_t> every(all.size());
    for (size_t i = 0; i < every.size(); ++i) every[i] = i;
    const Sum whole = feed(all, start, values, {}, cut);
    ASSERT_EQ(feed(all, start, values, every, cut), whole) << text;
    for (int i = 0; i < 4; ++i)
      ASSERT_EQ(feed(all, start, values, {random() % 60, random() % 60, random() % 60}, cut), whole) << text;
    for (const auto& [name, arguments] : whole.calls) {
      ASSERT_TRUE(cut || json::accept(arguments)) << text << " gave " << arguments;
    }
  }
}

TEST(Markup, TagsSpelledInsideAValueAreText) {
  const std::string value = "</arg_value></tool_call><tool_call>g";
  Feeder feeder(Start::Off, /*values_end_by_text=*/false);
  feeder.tag(MarkupTag::Call);
  feeder.text("f");
  feeder.tag(MarkupTag::Key);
  feeder.text("s");
  feeder.tag(MarkupTag::EndKey);
  feeder.tag(MarkupTag::Value);
  feeder.text(value);
  feeder.tag(MarkupTag::EndCall);  // inside a value this token is text, too
  feeder.tag(MarkupTag::EndValue);
  feeder.tag(MarkupTag::EndCall);
  const Sum sum = feeder.end();
  ASSERT_EQ(sum.calls.size(), 1u);
  EXPECT_EQ(json::parse(sum.calls[0].second)["s"], value + "</tool_call>");
  EXPECT_EQ(sum.content, "");
}

TEST(Markup, ACallCutByALimitStaysAsItIs) {
  const std::vector<Symbol> all = symbols("<tool_call>f<arg_key>s</arg_key><arg_value>Par", true);
  EXPECT_EQ(feed(all, Start::Off, false, {}, /*cut=*/true), (Sum{"", "", {{"f", "{\"s\":\"Par"}}}));
  EXPECT_EQ(feed(symbols("<tool_call>get_wea", true), Start::Off, false, {}, /*cut=*/true), Sum{});
}

TEST(Markup, WithoutToolsCallsAreText) {
  MarkupParser parser({.start = Start::InReasoning, .drop_think_tags = true});
  EXPECT_EQ(parser.push("x<tool_call>f</tool_call>").content, "<tool_call>f</tool_call>");
  EXPECT_EQ(parser.tag(MarkupTag::Call).content, "<tool_call>");
}

TEST(Markup, TagTokensAreCertain) {
  MarkupParser parser({.start = Start::InReasoning, .drop_think_tags = true});
  EXPECT_EQ(parser.push("a</thi").reasoning, "a");
  EXPECT_EQ(parser.tag(MarkupTag::EndThink).reasoning, "</thi");
  EXPECT_EQ(parser.push("c").content, "c");
  MarkupParser opens({.start = Start::MayBegin, .drop_think_tags = true});
  EXPECT_EQ(opens.tag(MarkupTag::Think).content, "");
  EXPECT_EQ(opens.push("why").reasoning, "why");
}

}  // namespace
}  // namespace plumb

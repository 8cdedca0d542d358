#include "grammar/compile.h"

#include <nlohmann/json.hpp>

#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/json_text.h"
#include "grammar/regex_syntax.h"

namespace plumb::grammar {

namespace {

using Json = nlohmann::ordered_json;

class Shaper {
 public:
  explicit Shaper(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  Result<int> shape(const OutputShape& shape) {
    std::vector<Expr> ways;
    if (!shape.calls_required) {
      PLUMB_TRY(Expr content, content_of(shape.content));
      ways.push_back(std::move(content));
    }
    if (!shape.tools.empty()) {
      PLUMB_TRY(Expr calls, calls_of(shape));
      ways.push_back(std::move(calls));
    }
    std::vector<Expr> parts;
    if (shape.reasoning == Reasoning::Open) parts.push_back(reasoning());
    if (shape.reasoning == Reasoning::MayBegin) parts.push_back(optional(sequence({mark("<think>"), reasoning()})));
    parts.push_back(choice(std::move(ways)));
    return rules_.add("text", sequence(std::move(parts)));
  }
  const Rules& rules() const { return rules_; }

 private:
  Expr mark(std::string_view name) const {
    const int index = vocabulary_.tag_named(name);
    return index >= 0 ? tag(index) : text(name);
  }
  // Up to the closing tag. The line break that some models put behind it would be part of the constrained text.
  Expr reasoning() const {
    const int index = vocabulary_.tag_named("</think>");
    return until("</think>", index >= 0 ? std::vector<int>{index} : std::vector<int>{});
  }

  Result<Expr> content_of(const ContentShape& content) {
    switch (content.kind) {
      case ContentShape::Kind::Free:
        return repeat(chars(CodePoints::all()), 0, -1);
      case ContentShape::Kind::JsonObject:
        return rule(add_json_rules(rules_).object);
      case ContentShape::Kind::JsonSchema: {
        const Json schema = Json::parse(content.source, nullptr, /*allow_exceptions=*/false);
        PLUMB_TRY(const int index, add_json_schema(schema, rules_));
        return rule(index);
      }
      case ContentShape::Kind::Regex:
        return parse_regex(content.source, /*search=*/false);
      case ContentShape::Kind::Choice: {
        std::vector<Expr> ways;
        for (const std::string& one : content.choices) ways.push_back(text(one));
        return choice(std::move(ways));
      }
      case ContentShape::Kind::Ebnf: {
        PLUMB_TRY(const int index, parse_ebnf(content.source, rules_));
        return rule(index);
      }
    }
    return text("");
  }

  Result<Expr> calls_of(const OutputShape& shape) {
    std::vector<Expr> calls;
    for (const ToolShape& tool : shape.tools) {
      Result<Expr> arguments = arguments_of(tool);
      if (!arguments) return std::move(arguments).error().in(tool.name);
      calls.push_back(sequence({text(tool.name), *std::move(arguments)}));
    }
    const Expr call = sequence({mark("<tool_call>"), choice(std::move(calls)), mark("</tool_call>")});
    return repeat(call, 1, shape.one_call ? 1 : -1);
  }

  Expr argument(Expr key, Expr value) const {
    return sequence({mark("<arg_key>"), std::move(key), mark("</arg_key>"), mark("<arg_value>"), std::move(value),
                     mark("</arg_value>")});
  }

  Result<Expr> arguments_of(const ToolShape& tool) {
    if (tool.parameters_json.empty()) return text("");
    const Json schema = Json::parse(tool.parameters_json, nullptr, /*allow_exceptions=*/false);
    PLUMB_TRY(std::vector<Argument> named, add_arguments(schema, rules_));
    const bool free = named.empty() && schema.is_object() && schema.contains("additionalProperties") &&
                      schema["additionalProperties"] != false;
    if (free) {
      const Expr key = repeat(chars({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}), 1, 64);
      return repeat(argument(key, repeat(chars(CodePoints::all()), 0, -1)), 0, 64);
    }
    std::vector<Expr> parts{text("")};
    for (Argument& one : named) {
      Expr written = argument(text(one.name), std::move(one.value));
      parts.push_back(one.required ? std::move(written) : optional(std::move(written)));
    }
    return sequence(std::move(parts));
  }

  const Vocabulary& vocabulary_;
  Rules rules_{};
};

}  // namespace

Result<std::shared_ptr<Grammar>> compile(const OutputShape& shape, std::shared_ptr<const Vocabulary> vocabulary,
                                         int64_t warm_us) {
  Shaper shaper(*vocabulary);
  PLUMB_TRY(const int root, shaper.shape(shape));
  PLUMB_TRY(Automaton automaton, build_automaton(shaper.rules(), root));
  auto grammar = std::make_shared<Grammar>(std::move(automaton), std::move(vocabulary));
  grammar->warm_up(warm_us);
  std::vector<uint32_t> mask(grammar->vocabulary().words());
  if (!Cursor(grammar).next({}, mask).possible) {
    return Error{Code::Usage,
                 "no token begins a text that satisfies the constraint",
                 "the vocabulary lacks it, or the constraint is too ambiguous to tell in time",
                 {}};
  }
  return grammar;
}

}  // namespace plumb::grammar

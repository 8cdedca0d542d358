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
    if (shape.calls_amid_text) {
      PLUMB_TRY(Expr text, amid_text(shape));
      return rules_.add("text", std::move(text));
    }
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
    PLUMB_TRY(Expr rest, rest_of_call(shape));
    return repeat(sequence({mark("<tool_call>"), std::move(rest)}), 1, shape.one_call ? 1 : -1);
  }

  // From the tag that begins a call, or its text, to the call's end the model is bound; elsewhere it is free.
  Result<Expr> amid_text(const OutputShape& shape) {
    static constexpr std::string_view kBegin = "<tool_call>";
    const int begin = vocabulary_.tag_named(kBegin);
    std::vector<int> others;
    for (int i = 0; i < static_cast<int>(vocabulary_.tags().size()); ++i)
      if (i != begin) others.push_back(i);
    PLUMB_TRY(Expr rest, rest_of_call(shape));
    Expr to_call = until(kBegin, begin >= 0 ? std::vector<int>{begin} : std::vector<int>{}, others);
    return sequence(
        {repeat(sequence({std::move(to_call), std::move(rest)}), 0, -1), without(kBegin, std::move(others))});
  }

  Result<Expr> rest_of_call(const OutputShape& shape) {
    std::vector<Expr> calls;
    for (const ToolShape& tool : shape.tools) {
      Result<Expr> arguments = tool.any_arguments ? any_arguments() : arguments_of(tool);
      if (!arguments) return std::move(arguments).error().in("tool " + tool.name);
      calls.push_back(sequence({text(tool.name), *std::move(arguments)}));
    }
    return sequence({choice(std::move(calls)), mark("</tool_call>")});
  }

  // As the parser of calls reads them: white space may stand between the parts.
  Expr any_arguments() const {
    const Expr space = repeat(chars({{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}}), 0, -1);
    const Expr any = repeat(chars(CodePoints::all()), 0, -1);
    return sequence({space, repeat(sequence({argument(any, any, space), space}), 0, -1)});
  }

  Expr argument(Expr key, Expr value, Expr between = text("")) const {
    return sequence({mark("<arg_key>"), std::move(key), mark("</arg_key>"), std::move(between), mark("<arg_value>"),
                     std::move(value), mark("</arg_value>")});
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

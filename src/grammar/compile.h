// From what a request asks of its answer to a grammar.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "grammar/grammar.h"

namespace plumb::grammar {

// What the visible text must be.
struct ContentShape {
  enum class Kind : uint8_t { Free, JsonObject, JsonSchema, Regex, Choice, Ebnf };
  Kind kind = Kind::Free;
  std::string source{};  // the schema as JSON, the pattern, the grammar
  std::vector<std::string> choices{};
};

struct ToolShape {
  std::string name{};
  std::string parameters_json{};  // a schema, or "" for none
  bool any_arguments = false;     // whatever has the form of arguments
};

enum class Reasoning : uint8_t { None, Open, MayBegin };  // as the prompt left it

struct OutputShape {
  Reasoning reasoning = Reasoning::None;  // free text up to </think>, before all else
  ContentShape content{};
  std::vector<ToolShape> tools{};  // those that may be called
  bool calls_required = false;     // calls and nothing else
  bool calls_amid_text = false;    // free text, reasoning included, with calls anywhere; not beside a content's shape
  bool one_call = false;
};

// A call begins with the tag <tool_call>; where the vocabulary lacks a tag, it is spelled out. Errors (Code::Usage)
// name the path inside the schema or the place in the pattern; `warm_us` is how long states may be worked out ahead.
Result<std::shared_ptr<Grammar>> compile(const OutputShape& shape, std::shared_ptr<const Vocabulary> vocabulary,
                                         int64_t warm_us);

}  // namespace plumb::grammar

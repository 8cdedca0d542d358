// The tools that a request offers, as the parser of calls needs them: which names there are, and what a value of each
// argument is in JSON, since a call writes strings bare.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace plumb {

struct ToolSpec {
  std::string name{};
  std::string parameters_json{};  // "" without
  bool strict = false;
};

class ToolSchemas {
 public:
  explicit ToolSchemas(const std::vector<ToolSpec>& tools);

  bool knows(std::string_view name) const { return tools_.contains(name); }
  // The value is text whatever it looks like: it may be shown as it comes.
  bool is_text(std::string_view tool, std::string_view argument) const;
  // The JSON of a value as the call wrote it. What the schema's types can't be read from is a string.
  std::string value_json(std::string_view tool, std::string_view argument, std::string_view raw) const;

 private:
  enum Type : unsigned {
    Null = 1,
    Boolean = 2,
    Integer = 4,
    Number = 8,
    String = 16,
    Array = 32,
    Object = 64,
    Any = 127
  };
  using Types = std::map<std::string, unsigned, std::less<>>;  // by argument
  unsigned types_of(std::string_view tool, std::string_view argument) const;

  std::map<std::string, Types, std::less<>> tools_{};
  friend struct TypeReader;
};

}  // namespace plumb

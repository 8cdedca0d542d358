// A template's source as tokens, by the rules of Jinja2 3.1 with trim_blocks and lstrip_blocks on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace plumb::jinja {

enum class TokenKind {
  Data,
  BlockBegin,
  BlockEnd,
  VariableBegin,
  VariableEnd,
  Name,
  String,
  Integer,
  Float,
  Operator,
  End
};

struct Token {
  TokenKind kind = TokenKind::End;
  std::string text{};  // data, name, operator, number, or the string with its escapes resolved
  int line = 1;

  bool is(TokenKind k, std::string_view t) const { return kind == k && text == t; }
  bool is_name(std::string_view t) const { return is(TokenKind::Name, t); }
  bool is_operator(std::string_view t) const { return is(TokenKind::Operator, t); }
};

// An error of the template itself: names its line.
Error template_error(int line, std::string_view message);

// Ends with a token of kind End.
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace plumb::jinja

// A pre-tokeniser's pattern. `tokenizer.json` writes Oniguruma's dialect; PCRE2 runs it after translation, which
// refuses by name what the two engines read differently.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace plumb {

// Oniguruma's pattern as PCRE2 reads it with UTF, UCP and a newline of "\n".
Result<std::string> translate_pattern(std::string_view pattern);

class Regex {
 public:
  static Result<Regex> compile(std::string_view pattern);
  static Result<Regex> compile_literal(std::string_view text);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Every match from left to right as (begin, end) in bytes. An empty match directly after another match is no match.
  // Fails only when a hostile pattern needs more steps than a bound proportional to the text's length.
  Status find_all(std::string_view valid_utf8, const std::function<void(size_t, size_t)>& found) const;

 private:
  struct Compiled;
  explicit Regex(std::unique_ptr<Compiled> code);
  static Result<Regex> compile_pcre2(std::string_view shown, std::string_view pattern, uint32_t options);
  std::unique_ptr<Compiled> code_;
};

}  // namespace plumb

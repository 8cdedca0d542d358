// A pre-tokeniser's pattern. `tokenizer.json` writes Oniguruma's dialect; PCRE2 runs it after translation, which
// refuses by name what the two engines read differently.
#pragma once

#include <functional>
#include <memory>
#include <span>
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

  struct Match {
    size_t text = 0;  // which of the texts
    size_t begin = 0;
    size_t end = 0;
  };
  // Every match in each of the texts (valid UTF-8) from left to right, in bytes. An empty match directly after another
  // match is no match. Fails only when a hostile pattern needs more steps than a bound proportional to a text's length.
  Status find_all(std::span<const std::string_view> texts, const std::function<void(const Match&)>& found) const;

 private:
  struct Compiled;
  explicit Regex(std::unique_ptr<Compiled> code);
  static Result<Regex> compile_pcre2(std::string_view shown, std::string_view pattern, uint32_t options);
  std::unique_ptr<Compiled> code_;
};

}  // namespace plumb

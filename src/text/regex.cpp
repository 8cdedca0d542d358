#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "text/unicode.h"

namespace plumb {

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string pattern{};  // for messages
  ~Compiled() { pcre2_code_free(code); }
};

namespace {

std::string pcre2_message(int error) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// One search over one text: the match block, its limits and the JIT's own stack (the machine stack stays untouched).
class Search {
 public:
  Search(const pcre2_code* code, bool jit, size_t text_bytes) : code_(code) {
    data_ = pcre2_match_data_create_from_pattern(code, nullptr);
    context_ = pcre2_match_context_create(nullptr);
    PLUMB_CHECK(data_ != nullptr && context_ != nullptr, "out of memory for a pattern's match block");
    // Legitimate patterns look at each character a few times; a nested quantifier explodes and is stopped here.
    const size_t steps = std::min<size_t>(1'000'000 + 64 * text_bytes, UINT32_MAX);
    pcre2_set_match_limit(context_, static_cast<uint32_t>(steps));
    pcre2_set_heap_limit(context_, 256 * 1024);  // KiB
    if (!jit) return;
    stack_ = pcre2_jit_stack_create(size_t{32} * 1024, size_t{1024} * 1024, nullptr);
    if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;
  ~Search() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
    pcre2_jit_stack_free(stack_);
  }

  // 1: found, 0: none, negative: PCRE2's error.
  int next(std::string_view text, size_t from) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(code_, subject, text.size(), from, options, data_, context_);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
      rc = pcre2_match(code_, subject, text.size(), from, options | PCRE2_NO_JIT, data_, context_);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    return rc < 0 ? rc : 1;
  }
  size_t begin() const { return pcre2_get_ovector_pointer(data_)[0]; }
  size_t end() const { return pcre2_get_ovector_pointer(data_)[1]; }

 private:
  const pcre2_code* code_;
  pcre2_match_data* data_ = nullptr;
  pcre2_match_context* context_ = nullptr;
  pcre2_jit_stack* stack_ = nullptr;
};

}  // namespace

Regex::Regex(std::unique_ptr<Compiled> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view pattern) {
  PLUMB_TRY(const std::string translated, translate_pattern(pattern));
  return compile_pcre2(pattern, translated, PCRE2_UTF | PCRE2_UCP);
}

Result<Regex> Regex::compile_literal(std::string_view text) {
  return compile_pcre2(text, text, PCRE2_UTF | PCRE2_LITERAL);
}

Result<Regex> Regex::compile_pcre2(std::string_view shown, std::string_view pattern, uint32_t options) {
  int error = 0;
  size_t where = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  PLUMB_CHECK(context != nullptr, "out of memory for a pattern");
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  auto code = std::make_unique<Compiled>();
  code->pattern = std::string(shown);
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &where, context);
  pcre2_compile_context_free(context);
  if (code->code == nullptr)
    return Error{Code::Corrupt,
                 fmt::format("pattern '{}' does not compile", shown),
                 fmt::format("{} at byte {} of its PCRE2 form", pcre2_message(error), where),
                 {}};
  code->jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;  // without JIT the interpreter does the same
  return Regex(std::move(code));
}

Status Regex::find_all(std::span<const std::string_view> texts, const std::function<void(const Match&)>& found) const {
  size_t longest = 0;
  for (const std::string_view text : texts) longest = std::max(longest, text.size());
  Search search(code_->code, code_->jit, longest);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string_view text = texts[i];
    bool matched_before = false;
    for (size_t from = 0; from <= text.size();) {
      const int rc = search.next(text, from);
      if (rc == 0) break;
      if (rc < 0)
        return Error{Code::Unsupported,
                     fmt::format("pattern '{}' gave up on a text of {} bytes", code_->pattern, text.size()),
                     pcre2_message(rc),
                     {"a pattern without nested quantifiers"}};
      const size_t begin = search.begin();
      const size_t end = search.end();
      if (begin == end && matched_before && begin == from) {
        from += std::max<size_t>(1, utf8::decode(text, from).length);
        matched_before = false;
        continue;
      }
      found({i, begin, end});
      matched_before = true;
      from = end;
    }
  }
  return {};
}

}  // namespace plumb

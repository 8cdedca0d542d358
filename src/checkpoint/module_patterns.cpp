#include "checkpoint/module_patterns.h"

#include <array>
#include <cstddef>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace plumb {
namespace {

// One `[...]` or `[!...]` of a glob at `at`; moves `at` behind it.
bool set_matches(std::string_view pattern, size_t& at, char c) {
  size_t i = at + 1;
  const bool negated = i < pattern.size() && pattern[i] == '!';
  if (negated) ++i;
  bool hit = false;
  const size_t first = i;
  for (; i < pattern.size() && (pattern[i] != ']' || i == first); ++i) {
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      hit = hit || (pattern[i] <= c && c <= pattern[i + 2]);
      i += 2;
    } else {
      hit = hit || pattern[i] == c;
    }
  }
  if (i >= pattern.size()) {  // never closed: a literal '['
    ++at;
    return c == '[';
  }
  at = i + 1;
  return hit != negated;
}

// Spellings of one module: its own, and as part of the fused linear that engines make of it.
std::vector<std::string> spellings(std::string_view module) {
  std::vector<std::string> names{std::string(module)};
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kFused{
      {{".q_a_proj", ".fused_qkv_a_proj_with_mqa"},
       {".kv_a_proj_with_mqa", ".fused_qkv_a_proj_with_mqa"},
       {".gate_proj", ".gate_up_proj"},
       {".up_proj", ".gate_up_proj"}}};
  for (const auto& [part, fused] : kFused) {
    if (module.ends_with(part)) {
      names.push_back(std::string(module.substr(0, module.size() - part.size())).append(fused));
    }
  }
  return names;
}

// Multimodal wrappers put the text model one level down; its tensors here begin with "model.".
std::string without_wrapper(std::string_view pattern) {
  if (pattern.ends_with(".weight")) pattern.remove_suffix(7);
  for (const std::string_view wrapper : {"model.language_model.", "language_model.model."}) {
    if (pattern.starts_with(wrapper)) return std::string("model.").append(pattern.substr(wrapper.size()));
  }
  return std::string(pattern);
}

Result<std::shared_ptr<const void>> compile_regex(std::string_view expression) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                       PCRE2_ANCHORED, &code, &offset, nullptr);
  if (compiled == nullptr) {
    std::array<unsigned char, 160> message{};
    pcre2_get_error_message(code, message.data(), message.size());
    return Error{Code::Corrupt,
                 std::string("the pattern 're:").append(expression).append("' is not a regular expression: ") +
                     reinterpret_cast<const char*>(message.data()),
                 "",
                 {}};
  }
  return std::shared_ptr<const void>(
      compiled, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
}

// Bounded: a hostile expression stops at the limits and then does not match.
bool regex_matches(const void* compiled, const std::string& name) {
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const auto* code = static_cast<const pcre2_code*>(compiled);
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  if (!context || !data) return false;
  pcre2_set_match_limit(context.get(), 100'000);
  pcre2_set_heap_limit(context.get(), 1024);
  return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0, data.get(), context.get()) >=
         0;
}

}  // namespace

// fnmatch as shells have it. On a mismatch only the last star is tried again, so the cost is at most the product of the
// lengths.
bool glob_matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
      continue;
    }
    size_t next = p + 1;
    bool well = false;
    if (p < pattern.size() && pattern[p] == '[') {
      next = p;
      well = set_matches(pattern, next, text[t]);
    } else if (p < pattern.size()) {
      well = pattern[p] == '?' || pattern[p] == text[t];
    }
    if (well) {
      p = next;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<ModulePatterns> ModulePatterns::compile(std::vector<std::string> patterns) {
  ModulePatterns set;
  for (const std::string& pattern : patterns) {
    if (pattern.starts_with("re:")) {
      PLUMB_TRY(auto regex, compile_regex(std::string_view(pattern).substr(3)));
      set.regexes_.push_back(std::move(regex));
      continue;
    }
    std::string plain = without_wrapper(pattern);
    if (plain.empty()) continue;
    if (plain.find_first_of("*?[") != std::string::npos) {
      set.globs_.push_back(std::move(plain));
    } else {
      set.plain_.insert(std::move(plain));
    }
  }
  set.patterns_ = std::move(patterns);
  return set;
}

bool ModulePatterns::matches_one(const std::string& name) const {
  if (!plain_.empty()) {
    if (plain_.contains(name)) return true;
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      if (plain_.contains(name.substr(0, dot))) return true;
    }
    if (plain_.contains(name.substr(name.rfind('.') + 1))) return true;
  }
  for (const std::string& glob : globs_) {
    if (glob_matches(glob, name)) return true;
  }
  for (const auto& regex : regexes_) {
    if (regex_matches(regex.get(), name)) return true;
    if (name.starts_with("model.") && regex_matches(regex.get(), "model.language_model." + name.substr(6))) return true;
  }
  return false;
}

bool ModulePatterns::matches(std::string_view module) const {
  if (patterns_.empty()) return false;
  for (const std::string& name : spellings(module)) {
    if (matches_one(name)) return true;
  }
  return false;
}

}  // namespace plumb

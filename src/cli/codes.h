// What every code that plumb shows means and what to do about it. The one home of these texts: `plumb explain` prints
// them, docs/troubleshooting.md repeats them (a test compares).
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace plumb {

struct CodeText {
  std::string_view code{};   // as users meet it: in an error, an answer, a plan, a verification receipt
  std::string_view group{};  // heading it stands under
  std::string_view means{};
  std::string_view fix{};
};
std::span<const CodeText> all_codes();
const CodeText* find_code(std::string_view code);

// The whole table, as docs/troubleshooting.md has it.
std::string codes_markdown();

}  // namespace plumb

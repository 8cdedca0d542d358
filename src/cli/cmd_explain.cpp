// plumb explain: what a code means and what to do about it.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/cli.h"
#include "cli/codes.h"

namespace plumb {
namespace {

Status explain(const std::string& code) {
  if (code.empty()) {
    std::fputs(codes_markdown().c_str(), stdout);
    return Ok{};
  }
  // An exit code stands for the kinds of error that end with it.
  const std::string as_exit = "exit code " + code + ":";
  bool found = false;
  for (const CodeText& text : all_codes()) {
    if (&text != find_code(code) && !text.means.starts_with(as_exit)) continue;
    found = true;
    std::printf("%.*s\n  %.*s\n  what to do: %.*s\n", static_cast<int>(text.code.size()), text.code.data(),
                static_cast<int>(text.means.size()), text.means.data(), static_cast<int>(text.fix.size()),
                text.fix.data());
  }
  if (found) return Ok{};
  return Error{Code::NotFound, "'" + code + "' is not a code that plumb shows", "", {"plumb explain: lists all"}};
}

}  // namespace

void add_explain_command(CLI::App& app, int& exit_code) {
  auto code = std::make_shared<std::string>();
  CLI::App* sub = app.add_subcommand("explain", "Say what a code means and what to do about it");
  sub->add_option("code", *code, "A code as it was shown, or an exit code; left out: all");
  sub->callback([code, &exit_code] {
    if (Status status = explain(*code); !status) exit_code = report(status.error());
  });
}

}  // namespace plumb

#include "cli/codes.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "base/result.h"
#include "support/source_dir.h"

namespace plumb {
namespace {

TEST(Codes, ExplainEveryKindOfErrorOnce) {
  std::set<std::string_view> seen;
  for (const CodeText& text : all_codes()) {
    EXPECT_TRUE(seen.insert(text.code).second) << text.code;
    EXPECT_FALSE(text.means.empty() || text.fix.empty()) << text.code;
    EXPECT_EQ(find_code(text.code), &text);
  }
  for (int code = 0; code <= static_cast<int>(Code::Internal); ++code) {
    const auto kind = static_cast<Code>(code);
    const CodeText* text = find_code(code_name(kind));
    ASSERT_NE(text, nullptr) << code_name(kind);
    EXPECT_TRUE(text->means.starts_with("exit code " + std::to_string(exit_code(kind)) + ":")) << text->means;
  }
  EXPECT_EQ(find_code("limits.n_multiple"), find_code("limits"));
  EXPECT_EQ(find_code("nonsense"), nullptr);
}

TEST(Codes, AreTheSameInTheDocuments) {
  std::ifstream file(testing::source_dir() + "/docs/troubleshooting.md");
  std::ostringstream page;
  page << file.rdbuf();
  EXPECT_NE(page.str().find(codes_markdown()), std::string::npos)
      << "docs/troubleshooting.md must contain what `plumb explain` prints:\n"
      << codes_markdown();
}

}  // namespace
}  // namespace plumb

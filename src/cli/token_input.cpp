#include "cli/token_input.h"

#include <sstream>

#include "checkpoint/json_file.h"

namespace plumb {

Result<std::vector<int32_t>> read_ids(const std::filesystem::path& file) {
  PLUMB_TRY(std::string text, read_text_file(file, size_t{64} << 20));
  for (char& c : text)
    if (c == '[' || c == ']' || c == ',') c = ' ';
  std::istringstream in(text);
  std::vector<int32_t> ids;
  for (std::string word; in >> word;) {
    long long id = -1;
    if (word.size() <= 10 && word.find_first_not_of("0123456789") == std::string::npos) id = std::stoll(word);
    if (id < 0 || id > INT32_MAX)
      return Error{Code::Usage, file.string() + ": '" + word + "' is not a token id", "", {"a list such as [1, 2, 3]"}};
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace plumb

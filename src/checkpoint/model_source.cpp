#include "checkpoint/model_source.h"

#include <algorithm>
#include <vector>

#include "checkpoint/json_file.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// A revision or a part of a name becomes part of a path: nothing that could leave the cache.
bool is_plain(std::string_view text) {
  return !text.empty() && text.size() <= 200 && !text.starts_with('.') && text.find("..") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                  c == '.';
         });
}

std::vector<std::string> folder_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// `refs/<revision>` holds the commit; a commit may also be given itself.
Result<ModelSource> find_snapshot(const fs::path& repository, const std::string& name, const std::string& revision) {
  std::string commit = revision;
  const fs::path ref = repository / "refs" / revision;
  if (auto text = read_text_file(ref, 200)) {
    commit = *std::move(text);
    while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' ' || commit.back() == '\r'))
      commit.pop_back();
  }
  const fs::path snapshots = repository / "snapshots";
  if (is_plain(commit) && is_folder(snapshots / commit)) return ModelSource{snapshots / commit, name, commit};
  std::string have;
  for (const std::string& found : folder_names(snapshots)) have += (have.empty() ? "" : ", ") + found;
  return Error{
      Code::NotFound, name + ": revision '" + revision + "' is not in the cache",
      "looked for " + ref.string() + " and " + (snapshots / revision).string(),
      have.empty() ? std::vector<std::string>{} : std::vector<std::string>{"one of the revisions there: " + have}};
}

}  // namespace

Result<ModelSource> resolve_model(std::string_view argument, const fs::path& hf_home) {
  const fs::path as_path{std::string(argument)};
  const std::string quoted = std::string("'").append(argument).append("'");
  if (!argument.empty() && is_folder(as_path)) {
    const fs::path whole = fs::absolute(as_path).lexically_normal();
    const std::string name = whole.has_filename() ? whole.filename().string() : whole.parent_path().filename().string();
    return ModelSource{as_path, name, ""};
  }
  std::error_code error;
  if (!argument.empty() && fs::exists(as_path, error)) {
    return Error{Code::Usage,
                 std::string(argument) + ": is a file",
                 "a model is the folder that holds config.json",
                 {"plumb ... " + as_path.parent_path().string()}};
  }
  const std::string_view name = argument.substr(0, argument.find('@'));
  const std::string revision(name.size() == argument.size() ? "main" : argument.substr(name.size() + 1));
  const size_t slash = name.find('/');
  const bool well_formed = slash != std::string_view::npos && is_plain(name.substr(0, slash)) &&
                           is_plain(name.substr(slash + 1)) && is_plain(revision);
  if (!well_formed) {
    return Error{Code::NotFound,
                 quoted + ": there is no such folder, and it is not a model name",
                 "a name has the form ORG/NAME or ORG/NAME@REVISION",
                 {"a folder with config.json and .safetensors files"}};
  }
  if (hf_home.empty()) {
    return Error{Code::NotFound,
                 quoted + ": there is no such folder",
                 "and no Hugging Face cache is known to look in",
                 {"set HF_HOME", "a folder"}};
  }
  const fs::path repository =
      hf_home / "hub" / ("models--" + std::string(name.substr(0, slash)) + "--" + std::string(name.substr(slash + 1)));
  if (!is_folder(repository)) {
    return Error{Code::NotFound,
                 quoted + ": is neither a folder nor in the local cache",
                 "looked for " + as_path.string() + " and " + repository.string() + "; nothing is downloaded",
                 {"download it first (hf download " + std::string(name) + ")", "the path of a folder"}};
  }
  return find_snapshot(repository, std::string(name), revision);
}

}  // namespace plumb

#include "text/files.h"

#include <fmt/format.h>

#include <fstream>

namespace plumb {

Result<std::string> read_text_file(const std::filesystem::path& path) {
  constexpr uintmax_t kMaxBytes = 1ull << 30;
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return Error{Code::NotFound, fmt::format("cannot read {}", path.string()), error.message(), {}};
  if (size > kMaxBytes)
    return Error{Code::Corrupt, fmt::format("{} has {} bytes", path.string(), size), "expected at most 1 GiB", {}};
  std::ifstream in(path, std::ios::binary);
  std::string text(size, '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  if (!in || static_cast<uintmax_t>(in.gcount()) != size)
    return Error{
        Code::Environment, fmt::format("cannot read {}", path.string()), "the file is shorter than its size", {}};
  if (text.starts_with("version https://git-lfs.github.com/spec/"))
    return Error{Code::Corrupt,
                 fmt::format("{}: is a Git LFS pointer, not the file itself", path.string()),
                 "",
                 {"git lfs pull"}};
  return text;
}

}  // namespace plumb

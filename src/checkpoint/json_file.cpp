#include "checkpoint/json_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

namespace plumb {
namespace {

using nlohmann::json;

// Builds the document while refusing what a plain parse would let pass.
class StrictBuilder : public nlohmann::json_sax<json> {
 public:
  explicit StrictBuilder(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return put(nullptr) != nullptr; }
  bool boolean(bool value) override { return put(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return put(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return put(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return put(value) != nullptr; }
  bool string(string_t& value) override { return put(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (stack_.back()->contains(name)) return fail("the key '" + name + "' stands twice in one object");
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    return fail("at byte " + std::to_string(position) + ": " + error.what());
  }

  std::string problem{};
  json root{};

 private:
  bool fail(std::string what) {
    problem = std::move(what);
    return false;
  }
  json* put(json value) {
    if (stack_.empty()) {
      root = std::move(value);
      return &root;
    }
    json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    json& slot = parent[key_];
    slot = std::move(value);
    return &slot;
  }
  bool open(json value) {
    if (static_cast<int>(stack_.size()) >= max_depth_) {
      return fail("nested deeper than " + std::to_string(max_depth_) + " levels");
    }
    stack_.push_back(put(std::move(value)));
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  int max_depth_;
  std::vector<json*> stack_{};
  std::string key_{};
};

Error io_error(const std::filesystem::path& path, const char* doing) {
  const int code = errno;
  return Error{code == ENOENT ? Code::NotFound : Code::Environment,
               path.string() + ": cannot " + doing,
               std::strerror(code),
               {}};
}

}  // namespace

Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO must not hold us up
  if (fd < 0) return io_error(path, "open");
  struct stat facts {};
  // /dev/null and the like end at once or at the limit.
  if (::fstat(fd, &facts) != 0 || (!S_ISREG(facts.st_mode) && !S_ISCHR(facts.st_mode))) {
    ::close(fd);
    return Error{Code::NotFound,
                 path.string() + (S_ISDIR(facts.st_mode) ? ": is a folder, not a file" : ": is not a regular file"),
                 "",
                 {}};
  }
  std::FILE* file = ::fdopen(fd, "rb");
  if (file == nullptr) {
    ::close(fd);
    return io_error(path, "open");
  }
  std::string text;
  std::vector<char> chunk(1u << 16);
  size_t got = 0;
  while ((got = std::fread(chunk.data(), 1, chunk.size(), file)) > 0) {
    text.append(chunk.data(), got);
    if (text.size() > max_bytes) break;
  }
  const bool bad = std::ferror(file) != 0;
  std::fclose(file);
  if (bad) return io_error(path, "read");
  if (text.size() > max_bytes) {
    return Error{Code::Corrupt,
                 path.string() + ": larger than " + std::to_string(max_bytes) + " bytes",
                 "no file of this kind is that large",
                 {}};
  }
  return text;
}

Result<json> parse_json(std::string_view text, std::string_view file, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    return Error{Code::Corrupt,
                 std::string(file) + ": larger than " + std::to_string(limits.bytes) + " bytes",
                 "no file of this kind is that large",
                 {}};
  }
  StrictBuilder builder(limits.depth);
  const bool well = json::sax_parse(text.begin(), text.end(), &builder);
  if (!well) return Error{Code::Corrupt, std::string(file) + ": is not valid JSON", builder.problem, {}};
  return std::move(builder.root);
}

Result<json> read_json(const std::filesystem::path& path, const JsonLimits& limits) {
  PLUMB_TRY(const std::string text, read_text_file(path, limits.bytes));
  if (text.starts_with("version https://git-lfs")) {
    return Error{Code::Corrupt, path.string() + ": is a Git LFS pointer, not the file itself", "", {"git lfs pull"}};
  }
  return parse_json(text, path.string(), limits);
}

Status write_text_file(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path part = path.string() + ".part";
  std::FILE* file = std::fopen(part.c_str(), "wb");
  if (file == nullptr) return io_error(part, "create");
  bool well = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  well = std::fflush(file) == 0 && well;
  well = fsync(fileno(file)) == 0 && well;
  const int code = errno;
  std::fclose(file);
  if (well && std::rename(part.c_str(), path.c_str()) == 0) return Ok{};
  if (!well) errno = code;
  const Error error = io_error(path, "write");
  std::remove(part.c_str());
  return error;
}

}  // namespace plumb

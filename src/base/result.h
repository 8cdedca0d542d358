// Errors as values. Our own code throws nothing; a function that can fail because of the outside world returns
// Result<T> or Status, and a broken invariant of ours ends the process through PLUMB_CHECK (base/check.h).
//
// Member names follow std::expected, which libstdc++ 12 offers only in C++23 and nvcc 13.0 not at all.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace plumb {

// What kind of thing went wrong; decides the exit code (trust.md: 0 well, 1 usage or environment, 2 plan refused,
// 3 verification failed, 4 checkpoint broken, 5 peer or device lost, 70 internal).
enum class Code {
  Usage,         // unknown flag, ill-formed value
  NotFound,      // file, folder, tensor or key is missing
  Environment,   // port taken, out of memory, disk full, permission
  Unsupported,   // we understand the wish and cannot honour it: plan refused
  Verification,  // a check failed
  Corrupt,       // the checkpoint is broken or contradicts itself
  Peer,          // rank or device lost
  Cancelled,     // the caller went away
  Internal,      // our bug, as far as it can be reported as a value
};

int exit_code(Code code);
std::string_view code_name(Code code);

// Three sentences: what was asked and found, why it can't be, what would work.
struct Error {
  Code code = Code::Internal;
  std::string what{};                // asked and found: names the file, tensor, key, flag and value
  std::string why{};                 // why that can't be; may be empty when `what` says it all
  std::vector<std::string> works{};  // what would work instead; each a flag, value or action

  // "what\n  why\n  works instead: a, b". Ends without a newline.
  std::string to_string() const;
  // The same error seen from one call further out: prefixes `what`.
  Error in(std::string_view context) &&;
};

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Error& error() & { return std::get<1>(state_); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

struct Ok {};
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Ok) {}                                      // NOLINT(google-explicit-constructor)
  Status(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  Error& error() & { return *error_; }
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }

 private:
  std::optional<Error> error_{};
};

// PLUMB_TRY(auto x, expr): x = *expr, or return expr's error from the enclosing function.
#define PLUMB_CONCAT_(a, b) a##b
#define PLUMB_CONCAT(a, b) PLUMB_CONCAT_(a, b)
#define PLUMB_TRY_(tmp, lhs, ...)          \
  auto tmp = (__VA_ARGS__);                \
  if (!tmp) return std::move(tmp).error(); \
  lhs = *std::move(tmp)
#define PLUMB_TRY(lhs, ...) PLUMB_TRY_(PLUMB_CONCAT(plumb_try_, __LINE__), lhs, __VA_ARGS__)
// PLUMB_TRY_STATUS(expr): return expr's error, if it has one.
#define PLUMB_TRY_STATUS(...) \
  if (auto plumb_status = (__VA_ARGS__); !plumb_status) return std::move(plumb_status).error()

}  // namespace plumb

#include "serve/strict_json.h"

#include <unordered_set>
#include <vector>

#include <nlohmann/json.hpp>

namespace plumb {

namespace {

using Json = nlohmann::ordered_json;

// Builds the document itself, because the library's own builder looks each new key up among all earlier ones: quadratic
// in the size of an object, and a duplicate replaces in silence.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(int max_depth) : max_depth_(static_cast<size_t>(max_depth)) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return fail("binary data"); }
  bool start_object(size_t) override {
    keys_.emplace_back();
    return open(Json::object());
  }
  bool start_array(size_t) override {
    keys_.emplace_back();
    return open(Json::array());
  }
  bool key(string_t& value) override {
    if (!keys_.back().insert(value).second)
      return fail("the key \"" + value.substr(0, 64) + "\" appears twice in one object");
    auto& object = stack_.back()->get_ref<Json::object_t&>();
    object.emplace_back(std::move(value), nullptr);
    slot_ = &object.back().second;
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& thrown) override {
    const std::string text = thrown.what();
    const size_t colon = text.find(": ");  // "[json.exception...] parse error at line 1, column 2: ..."
    return fail("byte " + std::to_string(position) + ", " +
                (colon == std::string::npos ? text : text.substr(colon + 2)));
  }

  Json root{};
  std::string error{};

 private:
  bool fail(std::string message) {
    if (error.empty()) error = std::move(message);
    return false;
  }
  Json* place(Json&& value) {
    Json* target = &root;
    if (!stack_.empty() && stack_.back()->is_array()) {
      auto& array = stack_.back()->get_ref<Json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    if (!stack_.empty()) target = slot_;
    *target = std::move(value);
    return target;
  }
  template <class T>
  bool add(T&& value) {
    place(Json(std::forward<T>(value)));
    return true;
  }
  bool open(Json&& value) {
    if (stack_.size() >= max_depth_) return fail("nested deeper than " + std::to_string(max_depth_) + " levels");
    stack_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    stack_.pop_back();
    keys_.pop_back();
    return true;
  }

  const size_t max_depth_;
  std::vector<Json*> stack_{};  // open containers; a parent doesn't grow while its child is open, so the pointers hold
  std::vector<std::unordered_set<std::string>> keys_{};
  Json* slot_ = nullptr;  // value of the key read last
};

}  // namespace

Result<Json> parse_strict_json(std::string_view text, int max_depth) {
  Builder builder(max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return Error{Code::Usage, "the body is not valid JSON: " + builder.error, {}, {}};
  }
  return std::move(builder.root);
}

void append_json_string(std::string& out, std::string_view text) {
  bool plain = true;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    plain = plain && byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\';
  }
  if (plain) {
    out.append(1, '"').append(text).append(1, '"');
    return;
  }
  out += nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string printed(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace plumb

// The header of a safetensors file, checked by every rule of formats.md 4.2 while it is read: a handler for parse
// events rather than a document, because a document has already lost duplicate keys and the spelling of numbers.
#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"

namespace plumb {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxTensors = 4'000'000;

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
}

// For messages: bounded and printable, whatever the file holds.
std::string shown(std::string_view name) {
  std::string text(name.substr(0, 200));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return "'" + text + (name.size() > 200 ? "...'" : "'");
}

class HeaderReader : public nlohmann::json_sax<json> {
 public:
  SafetensorsHeader header{};
  std::string problem{};
  bool unsupported = false;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return unexpected("the number " + std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::Shape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return too_large(value);
      if (tensor_.shape.size() >= kMaxRank) return fail(at() + "has more than 8 dimensions");
      tensor_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::Offsets && offsets_seen_ < 2) {
      (offsets_seen_++ == 0 ? tensor_.begin : tensor_.end) = value;
      return true;
    }
    return unexpected("the number " + std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override { return unexpected("the number " + text); }
  bool string(string_t& value) override;
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    return fail("header byte " + std::to_string(position) + ": " + error.what());
  }

 private:
  enum class Place { Outside, Top, Metadata, Tensor, Shape, Offsets };
  enum class Field { None, Dtype, Shape, Offsets };

  std::string at() const { return "tensor " + shown(tensor_.name) + ": "; }
  bool fail(std::string what) {
    if (problem.empty()) problem = std::move(what);
    return false;
  }
  bool too_large(uint64_t value) { return fail(at() + "dimension " + std::to_string(value) + " is too large"); }
  bool unexpected(const std::string& found) {
    switch (place_) {
      case Place::Outside:
        return fail("the header is " + found + ", not an object");
      case Place::Top:
        return fail("entry " + shown(key_) + " is " + found + ", not an object");
      case Place::Metadata:
        return fail("__metadata__ " + shown(key_) + " is " + found + ", not a string");
      case Place::Shape:
        return fail(at() + "shape holds " + found + ", expected unsigned integers");
      case Place::Offsets:
        return fail(at() + "data_offsets holds " + found + ", expected two unsigned integers");
      case Place::Tensor:
        break;
    }
    return fail(at() + "field " + shown(key_) + " is " + found);
  }
  bool finish_tensor();

  Place place_ = Place::Outside;
  Field field_ = Field::None;
  std::string key_{};
  TensorInfo tensor_{};
  bool have_dtype_ = false, have_shape_ = false, have_offsets_ = false, seen_metadata_ = false;
  int offsets_seen_ = 0;
  std::unordered_set<std::string> names_{};
};

bool HeaderReader::string(string_t& value) {
  if (place_ == Place::Metadata) {
    header.metadata.emplace(key_, std::move(value));
    return true;
  }
  if (place_ != Place::Tensor || field_ != Field::Dtype) return unexpected("the string " + shown(value));
  const std::optional<DType> dtype = dtype_from_name(value);
  if (!dtype) {
    unsupported = true;
    return fail(at() + "element type " + shown(value) + " is not one we read");
  }
  tensor_.dtype = *dtype;
  have_dtype_ = true;
  return true;
}

bool HeaderReader::start_object(std::size_t) {
  if (place_ == Place::Outside) {
    place_ = Place::Top;
    return true;
  }
  if (place_ != Place::Top) return unexpected("an object");
  if (key_ == "__metadata__") {
    place_ = Place::Metadata;
    return true;
  }
  tensor_ = TensorInfo{};
  tensor_.name = key_;
  have_dtype_ = have_shape_ = have_offsets_ = false;
  place_ = Place::Tensor;
  return true;
}

bool HeaderReader::key(string_t& name) {
  key_ = std::move(name);
  if (place_ == Place::Top) {
    if (key_ == "__metadata__") {
      if (seen_metadata_) return fail("__metadata__ stands twice in the header");
      seen_metadata_ = true;
      return true;
    }
    if (key_.empty() || key_.size() > kMaxNameBytes || has_control_characters(key_)) {
      return fail("tensor name " + shown(key_) + " is empty, too long or has control characters");
    }
    if (!names_.insert(key_).second) return fail("tensor " + shown(key_) + " stands twice in the header");
    return names_.size() <= kMaxTensors || fail("more than 4,000,000 tensors");
  }
  if (place_ == Place::Metadata) {
    return !header.metadata.contains(key_) || fail("__metadata__ key " + shown(key_) + " stands twice");
  }
  field_ = key_ == "dtype"          ? Field::Dtype
           : key_ == "shape"        ? Field::Shape
           : key_ == "data_offsets" ? Field::Offsets
                                    : Field::None;
  if (field_ == Field::None) return fail(at() + "unknown field " + shown(key_));
  const bool again = field_ == Field::Dtype ? have_dtype_ : field_ == Field::Shape ? have_shape_ : have_offsets_;
  return !again || fail(at() + "field '" + key_ + "' stands twice");
}

bool HeaderReader::end_object() {
  if (place_ == Place::Tensor) {
    place_ = Place::Top;
    return finish_tensor();
  }
  place_ = place_ == Place::Metadata ? Place::Top : Place::Outside;
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  if (place_ != Place::Tensor || (field_ != Field::Shape && field_ != Field::Offsets)) return unexpected("an array");
  place_ = field_ == Field::Shape ? Place::Shape : Place::Offsets;
  offsets_seen_ = 0;
  return true;
}

bool HeaderReader::end_array() {
  if (place_ == Place::Offsets && offsets_seen_ != 2) return fail(at() + "data_offsets needs two numbers");
  (place_ == Place::Shape ? have_shape_ : have_offsets_) = true;
  place_ = Place::Tensor;
  return true;
}

// Size from the shape equals size from the offsets, without overflow (rule 4).
bool HeaderReader::finish_tensor() {
  if (!have_dtype_ || !have_shape_ || !have_offsets_) return fail(at() + "lacks dtype, shape or data_offsets");
  if (tensor_.begin > tensor_.end) return fail(at() + "data_offsets begin after they end");
  uint64_t total_bits = static_cast<uint64_t>(bits(tensor_.dtype));
  for (const int64_t extent : tensor_.shape) {
    if (__builtin_mul_overflow(total_bits, static_cast<uint64_t>(extent), &total_bits)) {
      return fail(at() + tensor_.type_string() + " has more elements than a 64-bit size can count");
    }
  }
  if (total_bits % 8 != 0) return fail(at() + tensor_.type_string() + " does not fill whole bytes");
  if (total_bits / 8 != tensor_.bytes()) {
    return fail(at() + tensor_.type_string() + " needs " + std::to_string(total_bits / 8) +
                " bytes, its data_offsets hold " + std::to_string(tensor_.bytes()));
  }
  header.tensors.push_back(std::move(tensor_));
  return true;
}

// Sorted by offset the tensors tile the data exactly (rule 5).
std::string tiling_problem(std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t expected = 0;
  std::string previous = "the start of the data";
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin != expected) {
      return "tensor " + shown(tensor.name) + " begins at byte " + std::to_string(tensor.begin) + " of the data, but " +
             previous + " ends at " + std::to_string(expected) +
             (tensor.begin < expected ? ": they overlap" : ": there is a hole");
    }
    expected = tensor.end;
    previous = "tensor " + shown(tensor.name);
    if (expected > data_bytes) {
      return previous + " ends at byte " + std::to_string(expected) + " of the data, but the file has only " +
             std::to_string(data_bytes) + ": the file is truncated or its header is wrong";
    }
  }
  if (expected == data_bytes) return "";
  return "the last tensor ends at byte " + std::to_string(expected) + " of the data, but the file has " +
         std::to_string(data_bytes) + ": " + std::to_string(data_bytes - expected) + " bytes belong to no tensor";
}

Error corrupt(std::string_view file, std::string what, std::string why = "") {
  return Error{Code::Corrupt, std::string(file) + ": " + std::move(what), std::move(why), {"download the file again"}};
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view prefix, uint64_t file_size, std::string_view file) {
  if (prefix.starts_with("version https://git-lfs")) {
    return Error{
        Code::Corrupt, std::string(file) + ": is a Git LFS pointer, not the tensors themselves", "", {"git lfs pull"}};
  }
  if (file_size < 8 || prefix.size() < 8) {
    return corrupt(file, "has " + std::to_string(file_size) + " bytes", "a safetensors file has at least 8");
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, prefix.data(), 8);
  if (header_bytes > kMaxHeaderBytes) {
    return corrupt(file, "its first 8 bytes announce a header of " + std::to_string(header_bytes) + " bytes",
                   "at most 100,000,000 are allowed: not a safetensors file, or a broken one");
  }
  if (header_bytes > file_size - 8 || prefix.size() - 8 < header_bytes) {
    return corrupt(
        file,
        "announces a header of " + std::to_string(header_bytes) + " bytes, the file has " + std::to_string(file_size),
        "the file is truncated");
  }
  std::string_view text = prefix.substr(8, header_bytes);
  if (!text.starts_with('{')) return corrupt(file, "its header does not start with '{'");
  while (text.ends_with(' ')) text.remove_suffix(1);
  if (!text.ends_with('}')) return corrupt(file, "its header does not end with '}' and blanks");

  HeaderReader reader;
  if (!json::sax_parse(text.begin(), text.end(), &reader)) {
    Error error = corrupt(file, reader.problem.empty() ? "its header is not valid JSON" : reader.problem);
    if (reader.unsupported) {
      error.code = Code::Unsupported;
      error.works = {"F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E8M0, F4, U8, I8, ... I64, F64, BOOL"};
    }
    return error;
  }
  reader.header.data_begin = 8 + header_bytes;
  const std::string problem = tiling_problem(reader.header.tensors, file_size - 8 - header_bytes);
  if (!problem.empty()) return corrupt(file, problem);
  return std::move(reader.header);
}

}  // namespace plumb

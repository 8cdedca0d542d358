#include "model/tap_recorder.h"

#include <algorithm>
#include <limits>

namespace plumb {
namespace {

// Rows of `from` columns become rows of `to` columns.
template <class T>
void widen(std::vector<T>& values, int64_t from, int64_t to, T fill) {
  if (from == to || values.empty()) return;
  std::vector<T> wide;
  const auto rows = static_cast<int64_t>(values.size()) / from;
  wide.reserve(static_cast<size_t>(rows * to));
  for (int64_t row = 0; row < rows; ++row) {
    wide.insert(wide.end(), values.begin() + row * from, values.begin() + (row + 1) * from);
    wide.insert(wide.end(), static_cast<size_t>(to - from), fill);
  }
  values = std::move(wide);
}

template <class T>
void append(std::vector<T>& values, const T* row, int64_t columns, int64_t width, T fill) {
  values.insert(values.end(), row, row + columns);
  values.insert(values.end(), static_cast<size_t>(width - columns), fill);
}

}  // namespace

bool TapRecorder::wants(std::string_view name) const {
  return std::any_of(wanted_.begin(), wanted_.end(), [&](const std::string& w) {
    return w == "*" || name == w || (name.ends_with(w) && name[name.size() - w.size() - 1] == '.');
  });
}

void TapRecorder::attach(Executor& executor) {
  executor.set_tap([this](std::string_view name, const Tensor& value) { record(name, value); });
}

void TapRecorder::record(std::string_view name, const Tensor& value) {
  if (value.data == nullptr || !wants(name)) return;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  Entry& entry = entries_[std::string(name)];
  const int64_t columns = value.dim(1);
  const int64_t width = std::max(columns, entry.columns);
  widen(entry.floats, entry.columns, width, kNone);
  widen(entry.ints, entry.columns, width, -1);
  entry.columns = width;
  entry.integer = value.dtype == DType::I32;
  for (int64_t row = 0; row < value.dim(0); ++row) {
    if (entry.integer)
      append(entry.ints, value.row_i32(row), columns, width, -1);
    else
      append(entry.floats, value.row_f32(row), columns, width, kNone);
  }
  entry.rows += value.dim(0);
}

const TapRecorder::Entry* TapRecorder::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

}  // namespace plumb

#include "model/weight_resolver.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "tensor/encode.h"

namespace plumb {
namespace {

constexpr size_t kListed = 8;  // names of a kind in a message; the rest is counted

std::string listed(const char* kind, const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kListed);
  std::string text = fmt::format("\n  {} {}: {}", names.size(), kind,
                                 fmt::join(names.begin(), names.begin() + static_cast<int64_t>(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool is_plain_float(DType type) { return type == DType::F32 || type == DType::F16 || type == DType::BF16; }

bool is_scalar(const TensorInfo& info) { return info.shape.empty() || (info.shape.size() == 1 && info.shape[0] == 1); }

// Every element finite, positive, without mantissa bits: the test of formats.md 3.2.
bool all_powers_of_two(const CheckpointTensor& scale) {
  const int64_t count = scale.info.elements();
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    if (scale.info.dtype == DType::BF16) {
      uint16_t half = 0;
      std::memcpy(&half, scale.data + i * 2, 2);
      bits = static_cast<uint32_t>(half) << 16;
    } else {
      std::memcpy(&bits, scale.data + i * 4, 4);
    }
    const uint32_t exponent = bits >> 23;
    if ((bits & 0x807fffffu) != 0 || exponent == 0 || exponent == 255) return false;
  }
  return true;
}

}  // namespace

bool WeightResolver::use(const CheckpointTensor& tensor) {
  const auto number = static_cast<size_t>(&tensor - checkpoint_.tensors().data());
  const bool fresh = !used_[number];
  used_[number] = true;
  return fresh;
}

const CheckpointTensor* WeightResolver::take(const std::string& name) {
  const CheckpointTensor* tensor = checkpoint_.find(name);
  if (tensor != nullptr) use(*tensor);
  return tensor;
}

const CheckpointTensor* WeightResolver::require(const std::string& name) {
  const CheckpointTensor* tensor = take(name);
  if (tensor == nullptr) missing_.push_back(name);
  return tensor;
}

bool WeightResolver::has_shape(const CheckpointTensor& tensor, std::initializer_list<int64_t> shape) {
  if (std::equal(shape.begin(), shape.end(), tensor.info.shape.begin(), tensor.info.shape.end())) return true;
  wrong_.push_back(fmt::format("{} is {}, config.json makes it [{}]", tensor.info.name, tensor.info.type_string(),
                               fmt::join(shape, ", ")));
  return false;
}

WeightSource WeightResolver::vector(const std::string& name, int64_t n) {
  WeightSource source{.name = name, .format = kBf16, .n = n, .k = 1};
  const CheckpointTensor* tensor = require(name);
  if (tensor == nullptr || !has_shape(*tensor, {n})) return source;
  if (!is_plain_float(tensor->info.dtype)) {
    wrong_.push_back(fmt::format("{} is {}, expected BF16, F16 or F32", name, tensor->info.type_string()));
    return source;
  }
  source.format = Format{tensor->info.dtype};
  source.data = tensor;
  return source;
}

WeightSource WeightResolver::vector_f32(const std::string& name, int64_t n) {
  WeightSource source = vector(name, n);
  if (source && source.format != kF32) {
    wrong_.push_back(fmt::format("{} is {}; it must be F32, a narrower copy reorders experts", name,
                                 source.data->info.type_string()));
  }
  return source;
}

const CheckpointTensor* WeightResolver::stacked(const std::string& name, int64_t experts, int64_t rows, int64_t k) {
  const CheckpointTensor* tensor = require(name);
  if (tensor == nullptr || !has_shape(*tensor, {experts, rows, k})) return nullptr;
  if (is_plain_float(tensor->info.dtype)) return tensor;
  wrong_.push_back(
      fmt::format("{} is {}; stacked experts are read as BF16, F16 or F32", name, tensor->info.type_string()));
  return nullptr;
}

WeightSource WeightResolver::linear(const std::string& module, int64_t n, int64_t k, Quantisable quantisable) {
  WeightSource source{.name = module + ".weight", .format = kBf16, .n = n, .k = k};
  const CheckpointTensor* packed = take(module + ".weight_packed");
  const CheckpointTensor* tensor = packed != nullptr ? packed : require(source.name);
  if (tensor == nullptr) return source;
  source.data = tensor;
  source.name = tensor->info.name;
  if (packed != nullptr || tensor->info.dtype == DType::U8) {
    resolve_nvfp4(module, source, packed != nullptr);
  } else if (tensor->info.dtype == DType::F8E4M3) {
    resolve_fp8(module, source);
  } else if (is_plain_float(tensor->info.dtype)) {
    source.format = Format{tensor->info.dtype};
    static_cast<void>(has_shape(*tensor, {n, k}));
  } else {
    wrong_.push_back(
        fmt::format("{} is {}, which is no weight format we read", source.name, tensor->info.type_string()));
    return source;
  }
  compare_with_config(module, source, quantisable);
  return source;
}

// A scalar that multiplies, whichever way the file has it (formats.md 2.9).
float WeightResolver::scalar(const CheckpointTensor& tensor, bool reciprocal) {
  if (!is_scalar(tensor.info) || tensor.info.dtype != DType::F32) {
    wrong_.push_back(fmt::format("{} is {}, expected one F32", tensor.info.name, tensor.info.type_string()));
    return 1.0f;
  }
  if (tensor.data == nullptr) return 1.0f;
  float value = 0;
  std::memcpy(&value, tensor.data, 4);
  const float multiplier = reciprocal ? 1.0f / value : value;
  if (!(value > 0) || !std::isfinite(value) || !(multiplier > 0) || !std::isfinite(multiplier)) {
    wrong_.push_back(fmt::format("{} is {}, expected finite and above 0", tensor.info.name, value));
    return 1.0f;
  }
  return multiplier;
}

void WeightResolver::take_input_scale(const std::string& name, WeightSource& source, bool reciprocal) {
  source.input = take(name);
  if (source.input == nullptr) {
    const QuantGroup* group = quant_.group_of(std::string_view(source.name).substr(0, source.name.rfind('.')));
    if (group != nullptr && group->activations == ActivationScheme::Static) ++static_input_absent_;
    return;
  }
  source.input_scale = scalar(*source.input, reciprocal);
  source.has_input_scale = true;
  // What ModelOpt writes for an expert that calibration never reached (formats.md 2.2).
  if (source.format == kNvfp4 && source.input_scale == 0.5f / 2688.0f) ++uncalibrated_;
}

void WeightResolver::resolve_nvfp4(const std::string& module, WeightSource& source, bool compressed_tensors) {
  source.format = kNvfp4;
  if (source.data->info.dtype != DType::U8) {
    wrong_.push_back(fmt::format("{} is {}, expected U8", source.name, source.data->info.type_string()));
    return;
  }
  if (source.k % 16 != 0) {
    wrong_.push_back(fmt::format("{}: {} inputs are not a multiple of 16, NVFP4's block", source.name, source.k));
    return;
  }
  static_cast<void>(has_shape(*source.data, {source.n, source.k / 2}));
  source.scale = require(module + ".weight_scale");
  if (source.scale != nullptr && has_shape(*source.scale, {source.n, source.k / 16}) &&
      source.scale->info.dtype != DType::F8E4M3) {
    wrong_.push_back(
        fmt::format("{} is {}, expected F8_E4M3", source.scale->info.name, source.scale->info.type_string()));
  }
  source.global = require(module + (compressed_tensors ? ".weight_global_scale" : ".weight_scale_2"));
  if (source.global != nullptr) source.global_scale = scalar(*source.global, compressed_tensors);
  take_input_scale(module + (compressed_tensors ? ".input_global_scale" : ".input_scale"), source, compressed_tensors);
}

// Block scales as F32 or BF16 values, or as exponents in F8_E8M0 or U8.
void WeightResolver::resolve_block_scale(const std::string& module, WeightSource& source) {
  source.format = kFp8BlockF32;
  if (!has_shape(*source.scale, {ceil_div(source.n, 128), ceil_div(source.k, 128)})) return;
  const DType type = source.scale->info.dtype;
  const std::string& name = source.scale->info.name;
  if (type == DType::F8E8M0 || type == DType::U8) {
    source.format = kFp8BlockUe8m0;
    source.scale_is_pow2 = true;
    return;
  }
  if (type != DType::F32 && type != DType::BF16) {
    wrong_.push_back(
        fmt::format("{} is {}, expected F32, BF16, F8_E8M0 or U8", name, source.scale->info.type_string()));
    return;
  }
  const bool can_look = source.scale->data != nullptr;
  source.scale_is_pow2 = can_look ? all_powers_of_two(*source.scale) : quant_.scale_ue8m0;
  if (!quant_.scale_ue8m0 || !quant_.expected_format(module)) return;
  source.format = kFp8BlockUe8m0;
  if (!source.scale_is_pow2) {
    wrong_.push_back(fmt::format("{}: config.json says scale_fmt ue8m0, but not every scale is a power of two", name));
  }
}

void WeightResolver::resolve_fp8(const std::string& module, WeightSource& source) {
  source.format = kFp8BlockF32;
  static_cast<void>(has_shape(*source.data, {source.n, source.k}));
  source.scale = take(module + ".weight_scale_inv");
  if (source.scale != nullptr) return resolve_block_scale(module, source);
  source.scale = take(module + ".weight_scale");
  if (source.scale == nullptr) {
    missing_.push_back(module + ".weight_scale_inv (or .weight_scale)");
    return;
  }
  const TensorInfo& scale = source.scale->info;
  const std::vector<int64_t> grid{ceil_div(source.n, 128), ceil_div(source.k, 128)};
  const bool is_channel =
      scale.shape == std::vector<int64_t>{source.n, 1} || scale.shape == std::vector<int64_t>{source.n};
  const bool is_grid = scale.shape == grid;
  // A small matrix can have one shape for both; then the configuration decides.
  const bool prefers_channel = quant_.expected_format(module) == std::optional(kFp8Channel);
  if (is_grid && !(is_channel && prefers_channel)) return resolve_block_scale(module, source);
  if (!is_scalar(scale) && !is_channel) {
    wrong_.push_back(fmt::format("{} is {}; for a weight [{}, {}] a scale a tensor, a row or a 128x128 block is read",
                                 scale.name, scale.type_string(), source.n, source.k));
    return;
  }
  source.format = is_scalar(scale) && !(is_channel && prefers_channel) ? kFp8Tensor : kFp8Channel;
  if (scale.dtype != DType::F32 && scale.dtype != DType::BF16) {
    wrong_.push_back(fmt::format("{} is {}, expected F32 or BF16", scale.name, scale.type_string()));
  }
  take_input_scale(module + ".input_scale", source, false);
}

// The three-way comparison: this tensor against what the configuration gives its module.
void WeightResolver::compare_with_config(const std::string& module, const WeightSource& source,
                                         Quantisable quantisable) {
  const std::optional<Format> expected = quant_.expected_format(module);
  if (!source.format.quantised()) {
    if (expected && quantisable == Quantisable::Yes) plain_though_wanted_.push_back(module);
    return;
  }
  ++quantised_;
  formats_found_.insert(source.format.to_string());
  if (quantisable == Quantisable::Never) {
    wrong_.push_back(fmt::format("{} is quantised ({}); this weight is only read as BF16, F16 or F32", source.name,
                                 source.format.to_string()));
    return;
  }
  if (!expected) {
    excluded_but_quantised_.push_back(fmt::format("{} ({})", module, source.format.to_string()));
    return;
  }
  const bool both_blocks =
      source.format.element == expected->element && source.format.block_n == 128 && expected->block_n == 128;
  if (source.format != *expected && !both_blocks) {
    other_format_.push_back(
        fmt::format("{} ({}, expected {})", module, source.format.to_string(), expected->to_string()));
  } else if (source.format == kNvfp4 && source.global != nullptr) {
    const bool reciprocal = source.global->info.name.ends_with("weight_global_scale");
    if (reciprocal != (quant_.method == QuantMethod::CompressedTensors)) {
      other_format_.push_back(fmt::format("{} (its global scale is {}, the other producer's convention)", module,
                                          source.global->info.name));
    }
  }
}

bool WeightResolver::ignore(std::string_view name) { return take(std::string(name)) != nullptr; }

int WeightResolver::ignore_prefix(std::string_view prefix) {
  int count = 0;
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    if (tensor.info.name.starts_with(prefix) && use(tensor)) ++count;
  }
  return count;
}

std::vector<std::string> WeightResolver::take_notes() {
  if (!plain_though_wanted_.empty()) {
    note(fmt::format("{} linears are not quantised though the configuration says so; the tensors decide:{}",
                     plain_though_wanted_.size(), listed("such", plain_though_wanted_)));
  }
  if (static_input_absent_ > 0) {
    note(fmt::format("{} quantised linears have no input_scale though the configuration says static activations",
                     static_input_absent_));
  }
  if (uncalibrated_ > 0) {
    note(fmt::format(
        "{} linears have the input_scale 1.8601e-4, which ModelOpt writes for experts that calibration never reached",
        uncalibrated_));
  }
  return std::move(notes_);
}

// Tensors nobody asked for. Scales of a cache are known and set aside: the cache has its own.
void WeightResolver::list_surplus() {
  int kv_scales = 0;
  int64_t outside = 0;
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i]) continue;
    const CheckpointTensor& tensor = checkpoint_.tensors()[i];
    const std::string& name = tensor.info.name;
    if (name.ends_with(".k_scale") || name.ends_with(".v_scale")) {
      ++kv_scales;
    } else if (name.ends_with("rotary_emb.inv_freq")) {
      continue;
    } else if (!tensor.in_index) {
      ++outside;
    } else {
      surplus_.push_back(name + " " + tensor.info.type_string());
    }
  }
  if (kv_scales > 0) note(fmt::format("{} KV scales are set aside: the cache computes its own", kv_scales));
  if (outside > 0) note(fmt::format("{} tensors outside the index are not used", outside));
}

Status WeightResolver::verdict() {
  list_surplus();
  std::string problems;
  if (!missing_.empty()) problems += listed("missing", missing_);
  if (!wrong_.empty()) problems += listed("wrong", wrong_);
  if (!surplus_.empty()) problems += listed("that this model has no place for", surplus_);
  const bool nothing_quantised =
      quantised_ == 0 && quant_.method != QuantMethod::None && missing_.empty() && !plain_though_wanted_.empty();
  const bool disagree = !excluded_but_quantised_.empty() || !other_format_.empty() || nothing_quantised;
  if (disagree) {
    problems +=
        fmt::format("\n  {}\n  {}\n  tensors: {}", quant_.config_says, quant_.hf_quant_says,
                    formats_found_.empty() ? "none quantised" : fmt::format("{}", fmt::join(formats_found_, ", ")));
    if (!excluded_but_quantised_.empty())
      problems += listed("quantised though the configuration leaves them out", excluded_but_quantised_);
    if (!other_format_.empty()) problems += listed("quantised otherwise than the configuration says", other_format_);
  }
  if (problems.empty()) return Ok{};
  return Error{Code::Corrupt,
               fmt::format("{}: the tensors do not fit the configuration", checkpoint_.folder().string()) + problems,
               "",
               {}};
}

}  // namespace plumb

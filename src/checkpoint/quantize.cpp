#include "checkpoint/quantize.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/encode_tensors.h"
#include "checkpoint/json_file.h"
#include "checkpoint/quant_config.h"
#include "tensor/dequant.h"

namespace plumb {
namespace {

using nlohmann::json;

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string_view module_of(std::string_view name) { return name.substr(0, name.rfind('.')); }

int layer_number(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  int layer = -1;
  if (name.starts_with(kLayers)) std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

bool fp8_quantises(const TensorInfo& info) {
  if (!info.name.ends_with(".weight") || info.shape.size() != 2) return false;
  for (const char* kept :
       {"embed_tokens", "lm_head", "mlp.gate.weight", "weights_proj", "eh_proj", "shared_head.head"}) {
    if (contains(info.name, kept)) return false;
  }
  return true;
}

bool nvfp4_quantises(const TensorInfo& info, int trunk_layers) {
  return info.shape.size() == 2 && contains(info.name, ".mlp.") && info.name.ends_with("_proj.weight") &&
         layer_number(info.name) < trunk_layers;
}

RowSource rows_of(const CheckpointTensor& tensor) {
  const Format format{tensor.info.dtype};
  const int64_t n = tensor.info.shape[0], k = tensor.info.shape[1];
  return {n, k,
          [matrix = EncodedMatrix{.format = format, .n = n, .k = k, .data = tensor.data}](int64_t first, int64_t count,
                                                                                          float* out) {
            for (int64_t r = 0; r < count; ++r) decode_row(matrix, first + r, out + r * matrix.k);
          }};
}

TensorProducer copy_of(const CheckpointTensor& tensor) {
  const int64_t rows = tensor.info.shape.empty() ? 1 : std::max<int64_t>(tensor.info.shape[0], 1);
  const uint64_t row_bytes = tensor.info.bytes() / static_cast<uint64_t>(rows);
  return {.info = tensor.info,
          .rows = rows,
          .row_step = 1,
          .fill = [data = tensor.data, row_bytes](int64_t first, int64_t count, std::byte* out) {
            std::memcpy(out, data + static_cast<uint64_t>(first) * row_bytes, static_cast<uint64_t>(count) * row_bytes);
          }};
}

// Largest inputs of modules, from a calibration run.
class Calibration {
 public:
  static Result<Calibration> read(const std::filesystem::path& path) {
    PLUMB_TRY(const json file, read_json(path));
    Calibration calibration;
    if (!file.is_object() || file.empty()) {
      return Error{Code::Corrupt, path.string() + ": is not an object of module names and numbers", "", {}};
    }
    for (const auto& [module, value] : file.items()) {
      const double amax = value.is_number() ? value.get<double>() : std::nan("");
      if (!(amax > 0) || !std::isfinite(amax)) {
        return Error{Code::Corrupt,
                     fmt::format("{}: '{}' is {}, expected a number above 0", path.string(), module, value.dump()),
                     "",
                     {}};
      }
      calibration.amax_[module] = amax;
    }
    return calibration;
  }

  // The module's own; up_proj reads what gate_proj reads; an expert that saw no token takes the largest of its layer.
  std::optional<float> find(const std::string& module) const {
    const size_t dot = module.rfind('.');
    const std::string parent = module.substr(0, dot);
    std::string projection = module.substr(dot + 1);
    if (const auto it = amax_.find(module); it != amax_.end()) return static_cast<float>(it->second);
    if (projection == "up_proj") projection = "gate_proj";
    if (const auto it = amax_.find(parent + "." + projection); it != amax_.end()) return static_cast<float>(it->second);
    const size_t experts = parent.find(".experts.");
    if (experts == std::string::npos) return std::nullopt;
    const std::string prefix = parent.substr(0, experts + 9);
    double best = 0;
    for (auto it = amax_.lower_bound(prefix); it != amax_.end() && it->first.starts_with(prefix); ++it) {
      if (it->first.ends_with("." + projection)) best = std::max(best, it->second);
    }
    return best > 0 ? std::optional<float>(static_cast<float>(best)) : std::nullopt;
  }

 private:
  std::map<std::string, double> amax_{};
};

struct Job {
  const QuantizeOptions& options;
  const Checkpoint& checkpoint;
  ThreadPool& pool;
  int trunk_layers = 0;
  std::optional<Calibration> calibration{};

  bool quantised(const TensorInfo& info) const { return quantises(options.to, info, trunk_layers); }
};

// gate_proj and up_proj of one MLP share their global scale (formats.md 2.5).
float fused_maximum(const Job& job, const CheckpointTensor& tensor, std::map<std::string, float>& maxima) {
  std::vector<std::string> names{tensor.info.name};
  for (const auto& [own, other] :
       {std::pair("gate_proj.weight", "up_proj.weight"), std::pair("up_proj.weight", "gate_proj.weight")}) {
    if (!tensor.info.name.ends_with(own)) continue;
    names.push_back(tensor.info.name.substr(0, tensor.info.name.size() - std::string_view(own).size()) + other);
  }
  float amax = 0;
  for (const std::string& name : names) {
    const CheckpointTensor* found = job.checkpoint.find(name);
    if (found == nullptr) continue;
    if (!maxima.contains(name)) maxima[name] = matrix_maximum(rows_of(*found), job.pool);
    amax = std::max(amax, maxima[name]);
  }
  return amax;
}

Status check_source(const Job& job) {
  std::vector<std::string> wrong;
  for (const CheckpointTensor& tensor : job.checkpoint.tensors()) {
    const DType type = tensor.info.dtype;
    const bool plain = type == DType::BF16 || type == DType::F16 || type == DType::F32;
    if (!plain) wrong.push_back(tensor.info.name + " is " + tensor.info.type_string());
    if (contains(tensor.info.name, ".mlp.experts.") && tensor.info.shape.size() == 3) {
      wrong.push_back(tensor.info.name + " holds stacked experts");
    }
    if (job.options.to == QuantizeTo::Nvfp4 && job.quantised(tensor.info) && tensor.info.shape[1] % 16 != 0) {
      wrong.push_back(tensor.info.name + " " + tensor.info.type_string() + " has rows that are no multiple of 16");
    }
  }
  if (wrong.empty()) return Ok{};
  return Error{Code::Unsupported,
               fmt::format("{}: cannot be quantised: {} ({} such tensors)", job.options.source.string(), wrong.front(),
                           wrong.size()),
               "the source must be a BF16, F16 or F32 checkpoint with a tensor per expert",
               {}};
}

Result<std::vector<TensorProducer>> produce(const Job& job) {
  std::vector<const CheckpointTensor*> order;
  for (const CheckpointTensor& tensor : job.checkpoint.tensors()) order.push_back(&tensor);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return checkpoint_order(a->info.name, b->info.name); });
  const Encoding encoding = job.options.to == QuantizeTo::Fp8        ? Encoding::Fp8Block
                            : job.options.to == QuantizeTo::Fp8Ue8m0 ? Encoding::Fp8BlockUe8m0
                                                                     : Encoding::Nvfp4;
  std::vector<TensorProducer> producers;
  std::map<std::string, float> maxima;
  for (const CheckpointTensor* tensor : order) {
    if (!job.quantised(tensor->info)) {
      producers.push_back(copy_of(*tensor));
      continue;
    }
    EncodeArgs args{.module = std::string(module_of(tensor->info.name)),
                    .source = rows_of(*tensor),
                    .encoding = encoding,
                    .maximum = 0,
                    .input_maximum = std::nullopt};
    if (encoding == Encoding::Nvfp4) args.maximum = fused_maximum(job, *tensor, maxima);
    if (job.calibration) {
      args.input_maximum = job.calibration->find(args.module);
      if (!args.input_maximum) {
        return Error{Code::NotFound,
                     fmt::format("{}: has no entry for {}", job.options.calibration->string(), args.module),
                     "",
                     {}};
      }
    }
    append_encoded(args, producers);
  }
  return producers;
}

json fp8_section(const Job& job) {
  std::set<std::string> kept;
  for (const CheckpointTensor& tensor : job.checkpoint.tensors()) {
    const std::string& name = tensor.info.name;
    if (name.ends_with(".weight") && !job.quantised(tensor.info)) kept.emplace(module_of(name));
    if (name.ends_with("e_score_correction_bias")) kept.insert(name);
  }
  json section{{"activation_scheme", "dynamic"},
               {"fmt", "e4m3"},
               {"quant_method", "fp8"},
               {"weight_block_size", {128, 128}},
               {"modules_to_not_convert", kept}};
  if (job.options.to == QuantizeTo::Fp8Ue8m0) section["scale_fmt"] = "ue8m0";
  return section;
}

std::vector<std::string> nvfp4_excluded(const Job& job) {
  std::vector<std::string> excluded{"lm_head"};
  for (int i = 0; i < job.trunk_layers; ++i) excluded.push_back(fmt::format("model.layers.{}.self_attn*", i));
  for (int i = 0; i < job.trunk_layers; ++i) {
    const std::string gate = fmt::format("model.layers.{}.mlp.gate", i);
    if (job.checkpoint.find(gate + ".weight") != nullptr) excluded.push_back(gate);
  }
  excluded.push_back(fmt::format("model.layers.{}*", job.trunk_layers));
  return excluded;
}

Status write_configs(const Job& job, json config) {
  const std::filesystem::path& folder = job.options.destination;
  if (job.options.to == QuantizeTo::Nvfp4) {
    const std::vector<std::string> excluded = nvfp4_excluded(job);
    // Loaders look for the name of the layout's producer; the version says who wrote it.
    const json producer{{"name", "modelopt"}, {"version", "plumb"}};
    const char* algorithm = job.calibration ? "NVFP4" : "W4A16_NVFP4";
    const json weights{{"dynamic", false}, {"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
    const json group{
        {"input_activations", job.calibration ? weights : json()}, {"weights", weights}, {"targets", {"Linear"}}};
    config["quantization_config"] = {{"config_groups", {{"group_0", group}}},
                                     {"ignore", excluded},
                                     {"quant_algo", algorithm},
                                     {"producer", producer},
                                     {"quant_method", "modelopt"}};
    const json hf{{"producer", producer},
                  {"quantization",
                   {{"quant_algo", algorithm},
                    {"kv_cache_quant_algo", nullptr},
                    {"group_size", 16},
                    {"exclude_modules", excluded}}}};
    PLUMB_TRY_STATUS(write_text_file(folder / "hf_quant_config.json", hf.dump(4)));
  } else {
    config["quantization_config"] = fp8_section(job);
  }
  PLUMB_TRY_STATUS(write_text_file(folder / "config.json", config.dump(2)));
  return copy_side_files(job.options.source, folder);
}

}  // namespace

bool quantises(QuantizeTo to, const TensorInfo& info, int trunk_layers) {
  return to == QuantizeTo::Nvfp4 ? nvfp4_quantises(info, trunk_layers) : fp8_quantises(info);
}

Status quantize_checkpoint(const QuantizeOptions& options, ThreadPool& pool) {
  PLUMB_TRY(json config, read_json(options.source / "config.json"));
  PLUMB_TRY(const QuantConfig quant, read_quant_config(options.source));
  if (quant.method != QuantMethod::None) {
    return Error{Code::Unsupported,
                 options.source.string() + ": is quantised already: " + quant.config_says,
                 "rounding twice loses more than rounding once",
                 {"the BF16 checkpoint it was made from"}};
  }
  const auto layers = config.find("num_hidden_layers");
  if (layers == config.end() || !layers->is_number_integer() || layers->get<int64_t>() < 1 ||
      layers->get<int64_t>() > 4096) {
    return Error{Code::Corrupt,
                 options.source.string() + "/config.json: 'num_hidden_layers' is missing or no number of layers",
                 "",
                 {}};
  }
  if (options.calibration && options.to != QuantizeTo::Nvfp4) {
    return Error{Code::Usage,
                 "a calibration file is given, but FP8 blocks scale activations as they come",
                 "",
                 {"leave it out"}};
  }
  PLUMB_TRY(const Checkpoint checkpoint, Checkpoint::open(options.source));
  Job job{options, checkpoint, pool, layers->get<int>(), std::nullopt};
  if (options.calibration) {
    PLUMB_TRY(job.calibration, Calibration::read(*options.calibration));
  }
  PLUMB_TRY_STATUS(check_source(job));
  PLUMB_TRY(std::vector<TensorProducer> producers, produce(job));
  const ShardedWriteOptions write{options.destination, options.max_shard_bytes, options.progress};
  PLUMB_TRY_STATUS(write_sharded(std::move(producers), write, pool));
  return write_configs(job, std::move(config));
}

}  // namespace plumb

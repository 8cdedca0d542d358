// plumb inspect: what a checkpoint holds. Tensors, formats, sizes, scale statistics; optionally every value checked.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_source.h"
#include "checkpoint/quant_config.h"
#include "cli/cli.h"
#include "cli/model_options.h"
#include "model/model_config.h"
#include "model/weight_map.h"
#include "tensor/dequant.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

struct InspectCommand {
  std::string model{};
  std::string filter{};
  bool json = false, tensors = false, check = false;
};

// Smallest and largest scale of a weight, over its global one.
Json scale_statistics(const WeightSource& source) {
  const EncodedSource encoded = encode_source(source);
  const EncodedMatrix& m = encoded.matrix;
  float low = INFINITY, high = 0;
  for (int64_t r = 0; r < scale_rows(m.format, m.n); ++r) {
    for (int64_t c = 0; c < scale_cols(m.format, m.k); ++c) {
      const float scale = decode_scale(m, r, c);
      low = std::min(low, scale);
      high = std::max(high, scale);
    }
  }
  Json out{{"min", low}, {"max", high}, {"power_of_two", source.scale_is_pow2}};
  if (m.format.global_scale) out["global"] = source.global_scale;
  if (source.has_input_scale) out["input"] = source.input_scale;
  return out;
}

uint64_t stored_bytes(const WeightSource& source) {
  uint64_t bytes = static_cast<uint64_t>(encoded_data_bytes(source.format, source.n, source.k));
  for (const CheckpointTensor* tensor : {source.scale, source.global, source.input})
    bytes += tensor != nullptr ? tensor->info.bytes() : 0;
  return bytes;
}

Json describe(const WeightSource& source) {
  Json out{{"name", source.name},
           {"shape", {source.n, source.k}},
           {"format", source.format.to_string()},
           {"bytes", stored_bytes(source)}};
  if (source.row_offset != 0) out["row_offset"] = source.row_offset;
  if (source.format.quantised()) out["scale"] = scale_statistics(source);
  return out;
}

struct Inspection {
  const ModelConfig& config;
  const QuantConfig& quant;
  const Checkpoint& checkpoint;
  const WeightMap& map;
};

Json summary(const Inspection& x) {
  std::map<std::string, std::pair<int64_t, uint64_t>> formats;
  uint64_t weights = 0;
  int64_t parameters = 0;
  for (const WeightSource* source : x.map.all()) {
    auto& [count, bytes] = formats[source->format.to_string()];
    ++count;
    bytes += stored_bytes(*source);
    weights += stored_bytes(*source);
    parameters += source->n * source->k;
  }
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(x.checkpoint.identity_hash()));
  Json by_format = Json::object();
  for (const auto& [name, entry] : formats) by_format[name] = {{"weights", entry.first}, {"bytes", entry.second}};
  Json notes = Json::array();
  for (const auto* list : {&x.checkpoint.warnings(), &x.config.notes, &x.quant.notes, &x.map.notes}) {
    for (const std::string& note : *list) notes.push_back(note);
  }
  return {{"model_type", x.config.model_type_name()},
          {"layers", x.config.num_hidden_layers},
          {"next_n_layer", x.map.mtp.has_value()},
          {"parameters", parameters},
          {"files", x.checkpoint.shard_names().size()},
          {"tensors", x.checkpoint.tensors().size()},
          {"bytes", x.checkpoint.total_bytes()},
          {"weight_bytes", weights},
          {"hash", hash},
          {"quantisation", {x.quant.config_says, x.quant.hf_quant_says}},
          {"kv_cache_wish", x.quant.kv_cache ? Json(*x.quant.kv_cache) : Json()},
          {"formats", by_format},
          {"notes", notes}};
}

void print_text(const Json& out) {
  for (const auto& [key, value] : out.items()) {
    if (key == "weights") continue;
    if (!value.is_structured()) {
      std::printf("%-14s %s\n", key.c_str(),
                  value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
      continue;
    }
    std::printf("%s\n", key.c_str());
    for (const auto& [name, item] : value.items()) {
      const std::string text = item.is_string() ? item.get<std::string>() : name + "  " + item.dump();
      std::printf("  %s\n", text.c_str());
    }
  }
  if (!out.contains("weights")) return;
  for (const Json& weight : out["weights"]) {
    std::printf("%-70s %-18s %-32s %s\n", weight["name"].get<std::string>().c_str(), weight["shape"].dump().c_str(),
                weight["format"].get<std::string>().c_str(),
                weight.contains("scale") ? weight["scale"].dump().c_str() : "");
  }
}

// Every value of every weight, all that is wrong told (formats.md section 5).
Status check_values(const WeightMap& map) {
  LoadBar bar;
  const auto all = map.all();
  uint64_t total = 0, done = 0;
  for (const WeightSource* source : all) total += stored_bytes(*source);
  std::string problems;
  int count = 0;
  for (const WeightSource* source : all) {
    const Status status = check_weight_values(*source);
    if (!status && ++count <= 20)
      problems += "\n  " + status.error().what + (status.error().why.empty() ? "" : ": " + status.error().why);
    done += stored_bytes(*source);
    bar.update({"check", static_cast<int64_t>(done), static_cast<int64_t>(total)});
  }
  bar.finish();
  if (count == 0) return Ok{};
  return Error{Code::Corrupt,
               std::to_string(count) + " of " + std::to_string(all.size()) + " weights have values that no weight has" +
                   problems,
               "",
               {}};
}

Status inspect(const InspectCommand& command, const CliContext& context) {
  PLUMB_TRY(const ModelSource source, resolve_model(command.model, context.hf_home));
  PLUMB_TRY(const ModelConfig config, read_model_config(source.folder));
  PLUMB_TRY(const QuantConfig quant, read_quant_config(source.folder));
  PLUMB_TRY(const Checkpoint checkpoint, Checkpoint::open(source.folder));
  PLUMB_TRY(const WeightMap map, map_weights(config, checkpoint, quant));
  Json out = summary({config, quant, checkpoint, map});
  if (command.tensors || !command.filter.empty()) {
    out["weights"] = Json::array();
    for (const WeightSource* weight : map.all()) {
      if (weight->name.find(command.filter) != std::string::npos) out["weights"].push_back(describe(*weight));
    }
  }
  if (command.json) {
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    print_text(out);
  }
  return command.check ? check_values(map) : Status(Ok{});
}

}  // namespace

void add_inspect_command(CLI::App& app, CliContext& context, int& exit_code) {
  auto command = std::make_shared<InspectCommand>();
  CLI::App* cmd = app.add_subcommand("inspect", "Show a checkpoint's tensors, formats, sizes and scale statistics");
  cmd->add_option("model", command->model, "Model folder or cached name")->required();
  cmd->add_flag("--tensors", command->tensors, "List every weight with its format and scales");
  cmd->add_option("--filter", command->filter, "List weights whose name contains this");
  cmd->add_flag("--check", command->check, "Check every value: scales finite and positive, no NaN, plausible size");
  cmd->add_flag("--json", command->json, "JSON instead of text");
  cmd->callback([command, &context, &exit_code] {
    const Status status = inspect(*command, context);
    if (!status) exit_code = report(status.error());
  });
}

}  // namespace plumb

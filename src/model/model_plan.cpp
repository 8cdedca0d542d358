#include "model/model_plan.h"

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>

#include "model/model_memory.h"

namespace plumb {
namespace {

std::string source_of(const ModelPlanOptions& options, const std::string& name) {
  const auto found = options.sources.find(name);
  return found == options.sources.end() ? "default" : found->second;
}

std::string number(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

Status one_of(const char* flag, const std::string& value, std::vector<std::string> allowed) {
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return Ok{};
  for (std::string& choice : allowed) choice = std::string("--") + flag + " " + choice;
  return Error{Code::Usage, std::string("--") + flag + " '" + value + "' is not a known value", "", std::move(allowed)};
}

Status check_values(const ModelPlanOptions& o) {
  PLUMB_TRY_STATUS(one_of("backend", o.backend, {"auto", "cpu", "cuda", "reference"}));
  PLUMB_TRY_STATUS(one_of("kv", o.kv, {"auto", "f32", "bf16", "fp8"}));
  PLUMB_TRY_STATUS(one_of("index-keys", o.index_keys, {"auto", "f32", "bf16", "fp8"}));
  PLUMB_TRY_STATUS(one_of("numeric-profile", o.numeric_profile, {"transformers", "engine"}));
  PLUMB_TRY_STATUS(one_of("activations", o.activations, {"auto", "f32", "bf16"}));
  PLUMB_TRY_STATUS(one_of("isa", o.isa, {"auto", "generic", "avx2", "avx512", "avx512bf16"}));
  PLUMB_TRY_STATUS(one_of("mtp", o.mtp, {"auto", "on", "off"}));
  const auto at_least = [](const char* flag, int64_t value, int64_t least) -> Status {
    if (value >= least) return Ok{};
    return Error{Code::Usage,
                 std::string("--") + flag + " " + std::to_string(value) + " is too small",
                 "it must be at least " + std::to_string(least),
                 {}};
  };
  PLUMB_TRY_STATUS(at_least("max-rows", o.max_rows, 1));
  PLUMB_TRY_STATUS(at_least("max-sequences", o.max_sequences, 1));
  PLUMB_TRY_STATUS(at_least("max-logit-rows", o.max_logit_rows, 0));
  PLUMB_TRY_STATUS(at_least("context", o.max_context, 0));
  PLUMB_TRY_STATUS(at_least("pages", o.pages, 0));
  return at_least("page-tokens", o.page_tokens, 1);
}

bool is_reference(const ModelPlanOptions& o) { return o.backend == "reference"; }

KvGeometry cache_geometry(const ModelConfig& config, const ModelPlanOptions& o) {
  KvGeometry kv{.kv_lora_rank = config.kv_lora_rank,
                .rope_dim = config.qk_rope_head_dim,
                .index_head_dim = config.index_head_dim,
                .page_tokens = o.page_tokens};
  const bool f32 = is_reference(o);
  kv.latent = o.kv == "f32" || (o.kv == "auto" && f32) ? KvFormat::F32
              : o.kv == "fp8"                          ? KvFormat::Fp8Tile128
                                                       : KvFormat::Bf16;
  // Engines keep FP8 index keys beside an FP8 latent cache; transformers has neither, so keys stay as exact as asked.
  const bool engine_fp8 = o.kv == "fp8" && o.numeric_profile == "engine";
  kv.index_key = o.index_keys == "f32" || (o.index_keys == "auto" && f32 && !engine_fp8) ? IndexKeyFormat::F32
                 : o.index_keys == "fp8" || (o.index_keys == "auto" && engine_fp8)       ? IndexKeyFormat::Fp8
                                                                                         : IndexKeyFormat::Bf16;
  return kv;
}

// model.md 3.2, 3.3, 3.7: what transformers computes, or what serving engines do.
Numerics numerics_of(const ModelConfig& config, const ModelPlanOptions& o) {
  const bool engine = o.numeric_profile == "engine";
  const bool bf16 = o.activations == "bf16";
  return {.round_bf16 = bf16,
          .norm_two_roundings = bf16 && !engine,
          .rope_bf16 = bf16 && !engine,
          .index_hadamard = engine && config.model_type == ModelType::DeepseekV32};
}

std::vector<Format> activation_formats(const ModelPlanOptions& o) {
  if (o.activations == "f32" || (o.activations == "auto" && is_reference(o))) return {kF32};
  return {kF32, kBf16};
}

std::vector<RowBucket> buckets_up_to(int64_t max_rows) {
  std::vector<RowBucket> buckets;
  int64_t lo = 1;
  for (const int64_t hi : {int64_t{1}, int64_t{8}, int64_t{64}, max_rows}) {
    if (hi < lo || hi > max_rows) continue;
    buckets.push_back({.m_lo = lo, .m_hi = hi});
    lo = hi + 1;
  }
  if (lo <= max_rows) buckets.push_back({.m_lo = lo, .m_hi = max_rows});
  return buckets;
}

Result<DeviceInfo> under_ceiling(DeviceInfo device, const std::string& isa) {
  if (isa == "auto") return device;
  const std::array<std::pair<std::string_view, Isa>, 4> names{
      {{"generic", Isa::Generic}, {"avx2", Isa::Avx2}, {"avx512", Isa::Avx512}, {"avx512bf16", Isa::Avx512Bf16}}};
  for (const auto& [name, ceiling] : names) {
    if (name != isa) continue;
    if (!device.has(ceiling))
      return Error{Code::Unsupported, "--isa " + isa + ": this machine does not have it", "", {"--isa auto"}};
    std::erase_if(device.isas, [top = ceiling](Isa have) { return have > top; });
  }
  return device;
}

// A backend asked for by name is the device's own: no other one steps in for it.
Status check_backend(const DeviceInfo& device, const std::string& backend) {
  if (backend != "cpu" && backend != "cuda") return Ok{};
  const bool on_cuda =
      std::any_of(device.isas.begin(), device.isas.end(), [](Isa isa) { return isa > Isa::Avx512Bf16; });
  if ((backend == "cuda") == on_cuda) return Ok{};
  return Error{Code::Unsupported,
               "--backend " + backend + " cannot be honoured",
               "the model would run on " + device.name,
               {"--backend auto", on_cuda ? "--backend cuda" : "--backend cpu"}};
}

// Kernels of one place read one format; a checkpoint may mix them inside an MLP.
Status check_mixed(const ModelConfig& config, const WeightMap& map, const ModelPlanOptions& o) {
  if (!config.rope_interleave)
    return Error{Code::Unsupported,
                 "config.json: rope_interleave is false",
                 "attention keys are rotated in interleaved pairs, as every published checkpoint wants",
                 {}};
  if (is_reference(o)) return Ok{};
  const auto differs = [](const MlpSources& m, const Format& format) {
    return !(m.gate_proj.format == format && m.up_proj.format == format && m.down_proj.format == format);
  };
  const auto check = [&](const MlpSources& m, const Format& format) -> Status {
    if (!differs(m, format)) return Ok{};
    return Error{Code::Unsupported,
                 m.gate_proj.name + " is " + m.gate_proj.format.to_string() + ", its up_proj " +
                     m.up_proj.format.to_string() + ", its down_proj " + m.down_proj.format.to_string(),
                 "the kernels of an MLP, and of one layer's experts, read one format (here " + format.to_string() + ")",
                 {"--backend reference"}};
  };
  const auto check_layer = [&](const LayerSources& layer) -> Status {
    if (layer.mlp) PLUMB_TRY_STATUS(check(*layer.mlp, layer.mlp->gate_proj.format));
    if (layer.shared_experts) PLUMB_TRY_STATUS(check(*layer.shared_experts, layer.shared_experts->gate_proj.format));
    for (const MlpSources& expert : layer.experts)
      PLUMB_TRY_STATUS(check(expert, layer.experts.front().gate_proj.format));
    return Ok{};
  };
  for (const LayerSources& layer : map.layers) PLUMB_TRY_STATUS(check_layer(layer));
  return map.mtp ? check_layer(map.mtp->layer) : Status{};
}

void add_flags(const PlanInput& in, const ModelPlanOptions& o, PlannedModel& out) {
  std::vector<FlagLine>& flags = out.plan.flags;
  const auto add = [&](const char* flag, const std::string& unasked, const std::string& effective) {
    const auto asked = o.asked.find(flag);
    flags.push_back({.name = flag,
                     .asked = asked == o.asked.end() ? unasked : asked->second,
                     .effective = effective,
                     .source = source_of(o, flag)});
  };
  const std::string kDefault = "default", kAuto = "auto";
  add("backend", o.backend, o.backend == "auto" ? "cpu" : o.backend);
  add("isa", o.isa, out.plan.device.isas.empty() ? "generic" : to_string(out.plan.device.isas.back()));
  add("kv", o.kv, to_string(out.kv.latent));
  add("index_keys", o.index_keys, to_string(out.kv.index_key));
  add("numeric_profile", o.numeric_profile, o.numeric_profile);
  add("activations", o.activations,
      o.activations != "auto" ? o.activations
      : is_reference(o)       ? "f32"
                              : "f32 between ops, read as f32 or bf16 by each kernel");
  add("deterministic", o.deterministic ? "on" : "off", o.deterministic ? "on" : "off");
  add("mtp", kAuto, out.with_mtp ? "on" : "off");
  add("max_rows", kDefault, std::to_string(out.limits.rows));
  add("max_sequences", kDefault, std::to_string(out.limits.sequences));
  add("context", kAuto, std::to_string(out.max_context));
  add("pages", kAuto, std::to_string(out.pages));
  add("page_tokens", kDefault, std::to_string(out.kv.page_tokens));
  for (const auto& [place, kernel] : o.pinned)
    flags.push_back(
        {.name = "kernel " + place, .asked = kernel, .effective = kernel, .source = source_of(o, "kernel")});
  const std::string profile = "numeric profile " + o.numeric_profile;
  const auto numeric = [&](const char* name, const std::string& value) {
    flags.push_back({.name = name, .asked = o.numeric_profile, .effective = value, .source = profile});
  };
  const Numerics& n = out.numerics;
  numeric("numeric.latent_norm_eps", number(out.latent_norm_eps));
  numeric("numeric.rms_norm_eps", number(static_cast<double>(in.config.rms_norm_eps)));
  numeric("numeric.norm_roundings", !n.round_bf16 ? "none (f32)" : n.norm_two_roundings ? "two" : "one");
  numeric("numeric.rope_cos_sin", n.rope_bf16 ? "bf16" : "f32");
  numeric("numeric.index_hadamard", n.index_hadamard ? "on" : "off");
  numeric("numeric.router_logits", "f32");
  numeric("numeric.softmax_scale", number(static_cast<double>(in.config.softmax_scale())));
}

void add_notes(const PlanInput& in, const ModelPlanOptions& o, PlannedModel& out) {
  std::vector<std::string>& notes = out.plan.notes;
  for (const auto* list : {&in.config.notes, &in.quant.notes, &in.map.notes})
    notes.insert(notes.end(), list->begin(), list->end());
  if (!in.config.unknown_keys.empty()) {
    std::string keys;
    for (const std::string& key : in.config.unknown_keys) keys += (keys.empty() ? "" : ", ") + key;
    notes.push_back("config.json keys without a meaning here: " + keys);
  }
  if (in.quant.kv_cache && o.kv == "auto")
    notes.push_back("the checkpoint asks for a " + *in.quant.kv_cache +
                    " KV cache and ships no scales for it: a request, not a format; the cache is " +
                    to_string(out.kv.latent) + " unless --kv fp8 is given");
  if (out.kv.latent == KvFormat::Fp8Tile128)
    notes.push_back(
        "KV cache in FP8: one scale per token and 128 latent values, computed when written; RoPE part bf16");
}

}  // namespace

Status choose_mtp(std::string_view asked, WeightMap& map) {
  if (asked == "off") map.mtp.reset();
  if (asked == "on" && !map.mtp)
    return Error{Code::Unsupported,
                 "--mtp on: the checkpoint has no next-token-prediction layer",
                 "its tensors (eh_proj and the layer after the last) are not there",
                 {"--mtp off", "--mtp auto"}};
  return Ok{};
}

Result<PlannedModel> plan_model(const PlanInput& input, const ModelPlanOptions& options) {
  PLUMB_TRY_STATUS(check_values(options));
  PLUMB_TRY_STATUS(check_backend(input.device, options.backend));
  PLUMB_TRY_STATUS(check_mixed(input.config, input.map, options));
  PlannedModel out;
  out.with_mtp = input.map.mtp.has_value();
  out.kv = cache_geometry(input.config, options);
  out.numerics = numerics_of(input.config, options);
  if (options.numeric_profile == "engine") out.latent_norm_eps = static_cast<double>(input.config.rms_norm_eps);
  SiteList sites = declare_sites(input.config, input.map, out.kv, out.numerics, activation_formats(options));
  out.sites = std::move(sites.ids);
  PLUMB_TRY(const DeviceInfo device, under_ceiling(input.device, options.isa));
  PLUMB_TRY(out.plan, resolve(std::move(sites.decls), input.registry, device,
                              {.backend = options.backend,
                               .pinned = options.pinned,
                               .buckets = buckets_up_to(options.max_rows),
                               .deterministic = options.deterministic}));
  out.plan.numeric_profile = options.numeric_profile;
  PLUMB_TRY_STATUS(fit_memory(input, options, out));
  add_flags(input, options, out);
  add_notes(input, options, out);
  return out;
}

}  // namespace plumb

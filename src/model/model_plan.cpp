#include "model/model_plan.h"

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>

#include "device/cuda_device.h"
#include "model/model_memory.h"
#include "model/split.h"

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
  PLUMB_TRY_STATUS(at_least("tp", o.tp, 1));
  if (o.memory_fraction != 0 && !(o.memory_fraction > 0 && o.memory_fraction <= 1))
    return Error{
        Code::Usage, "--memory-fraction " + number(o.memory_fraction) + " is not a share", "", {"0.9", "0.95"}};
  PLUMB_TRY_STATUS(at_least("max-rows", o.max_rows, 1));
  PLUMB_TRY_STATUS(at_least("max-sequences", o.max_sequences, 1));
  PLUMB_TRY_STATUS(at_least("max-logit-rows", o.max_logit_rows, 0));
  PLUMB_TRY_STATUS(at_least("context", o.max_context, 0));
  PLUMB_TRY_STATUS(at_least("pages", o.pages, 0));
  return at_least("page-tokens", o.page_tokens, 1);
}

bool is_reference(const ModelPlanOptions& o) { return o.backend == "reference"; }

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
  const bool on_cuda = device.is_gpu();
  if ((backend == "cuda") == on_cuda) return Ok{};
  return Error{Code::Unsupported,
               "--backend " + backend + " cannot be honoured",
               "the model would run on " + device.name,
               {"--backend auto", on_cuda ? "--backend cuda" : "--backend cpu"}};
}

Status check_config(const ModelConfig& config) {
  if (config.rope_interleave) return Ok{};
  return Error{Code::Unsupported,
               "config.json: rope_interleave is false",
               "attention keys are rotated in interleaved pairs, as every published checkpoint wants",
               {}};
}

// The checkpoint's own format in the words that people give to --quantization.
std::string quantization_of(const QuantConfig& quant) {
  switch (quant.method) {
    case QuantMethod::None:
      return "none";
    case QuantMethod::Fp8:
      return "fp8";
    case QuantMethod::ModelOpt:
      return quant.algorithm.find("NVFP4") != std::string::npos ? "modelopt_fp4"
             : quant.algorithm == "FP8"                         ? "modelopt_fp8"
                                                                : "modelopt_mixed";
    case QuantMethod::CompressedTensors:
      return "compressed-tensors";
  }
  return "?";
}

// The weights are as the checkpoint has them; the flag can only say what it must be.
Status check_quantization(const QuantConfig& quant, const std::string& asked) {
  const std::string found = quantization_of(quant);
  if (asked == "auto" || asked == found) return Ok{};
  Error error{Code::Unsupported,
              "--quantization " + asked + " cannot be honoured",
              "the checkpoint is '" + found + "' (" + quant.config_says + "), and weights run as they are stored",
              {"--quantization " + found}};
  if (found == "none") error.works.emplace_back("plumb quantize, and its result as the model");
  return error;
}

// The kinds of steps an engine makes with these options, and the rows that each can have.
std::vector<Phase> phases_of(const ModelPlanOptions& o, bool with_mtp) {
  const int64_t rows = o.max_rows, sequences = std::min(o.max_sequences, o.max_rows);
  const int64_t each = 1 + o.draft_tokens;
  const std::string no_drafts = !with_mtp ? "the plan has no next-n layer" : "nothing is drafted (--draft-tokens 0)";
  const bool drafts = with_mtp && o.draft_tokens > 0;
  std::vector<Phase> phases{{.name = "prefill", .rows = {1, rows}},
                            {.name = "chunked prefill", .rows = {1, rows}},
                            {.name = "decode", .rows = {1, sequences}},
                            {.name = "verify", .rows = {std::min(each, rows), std::min(sequences * each, rows)}},
                            {.name = "draft", .rows = {1, rows}, .draft = true}};
  if (!drafts) phases[3].absent = no_drafts;
  if (!with_mtp) phases[4].absent = no_drafts;
  return phases;
}

Status check_ranks(const PlanInput& in, const ModelPlanOptions& o) {
  return check_split(in.config, in.map, ranks_of(o));
}

void add_warnings(const PlanInput& in, PlannedModel& out) {
  std::vector<Warning>& warnings = out.plan.warnings;
  // What the readers of configuration and tensors say is set aside or defaulted changes no number: the goldens, which
  // are compared with transformers on the same files, hold it to that.
  for (const auto* list : {&in.config.notes, &in.quant.notes, &in.map.notes})
    for (const std::string& note : *list) warnings.push_back({"harmless here", note});
  if (out.kv.latent == KvFormat::Fp8Tile128)
    warnings.push_back(
        {"costs accuracy",
         "KV cache in FP8: measured on the bundled model over 1,750 tokens of random words (docs/plan.md), "
         "the mean KL divergence from an f32 cache is 0.035 (bf16 cache: 0.010), and the likeliest token is "
         "the same for 94.6 % of the positions (97.7 %)"});
  if (in.device.is_gpu()) {
    const bool no_code = std::any_of(out.plan.sites.begin(), out.plan.sites.end(), [](const Site& site) {
      return std::any_of(site.choices.begin(), site.choices.end(),
                         [](const Choice& choice) { return choice.kernel->launch == nullptr; });
    });
    const std::string compiled = cuda_architectures();
    const std::string wanted = to_string(in.device.isas.front());
    if (no_code)
      warnings.push_back({"will fail",
                          "this build was made without CUDA: it knows the contracts of the plain CUDA kernels alone, "
                          "names none of the fast ones, and cannot run the plan; build where nvcc is in PATH"});
    else if (compiled.find(wanted) == std::string::npos)
      warnings.push_back({"will fail", "this build has CUDA code for " + compiled + ", " + in.device.name + " wants " +
                                           wanted + ": build with -DPLUMB_CUDA_ARCHITECTURES for it"});
  }
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
  add("backend", o.backend, o.backend != "auto" ? o.backend : in.device.is_gpu() ? "cuda" : "cpu");
  add("device", kAuto, (o.tp > 1 ? std::to_string(o.tp) + " x " : "") + in.device.name);
  add("tp", kDefault, std::to_string(o.tp));
  add("expert_parallel", o.ep ? "on" : "off", o.ep ? "on" : "off");
  add("isa", o.isa, in.device.is_gpu() ? to_string(in.device.isas.front()) : to_string(out.plan.device.isas.back()));
  add("quantization", kAuto, quantization_of(in.quant));
  add("memory_fraction", kAuto,
      out.plan.fit.device_bytes == 0
          ? "all"
          : number(static_cast<double>(out.plan.fit.usable) / static_cast<double>(out.plan.fit.device_bytes)));
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

std::string how_ranks_add(const Plan& plan) {
  const auto site = std::ranges::find(plan.sites, Op::AllReduce, [](const Site& s) { return s.decl.call.op; });
  std::string text;
  for (auto choice = site->choices.begin(); choice != site->choices.end(); ++choice) {
    const auto next = std::next(choice);
    if (next != site->choices.end() && next->kernel == choice->kernel) continue;
    text += (text.empty() ? "ranks add up their partial sums by " : ", ") + choice->kernel->contract.name + " (up to " +
            std::to_string(choice->rows.m_hi) + " rows)";
  }
  const bool by_host = text.find(".host.") != std::string::npos;
  return text + (by_host ? ": by way of the host, which is slow" : "");
}

void add_notes(const PlanInput& in, const ModelPlanOptions& o, PlannedModel& out) {
  std::vector<std::string>& notes = out.plan.notes;
  if (o.tp > 1 && in.device.is_gpu()) notes.push_back(how_ranks_add(out.plan));
  if (in.quant.kv_cache && o.kv == "auto")
    notes.push_back("the checkpoint asks for a " + *in.quant.kv_cache +
                    " KV cache and ships no scales for it: a request, not a format; the cache is " +
                    to_string(out.kv.latent) + " unless --kv fp8 is given");
  if (out.kv.latent == KvFormat::Fp8Tile128)
    notes.push_back(
        "KV cache in FP8: one scale per token and 128 latent values, computed when written; RoPE part bf16");
}

}  // namespace

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
  PLUMB_TRY_STATUS(check_config(input.config));
  PLUMB_TRY_STATUS(check_quantization(input.quant, options.quantization));
  PLUMB_TRY_STATUS(check_ranks(input, options));
  PlannedModel out;
  out.with_mtp = input.map.mtp.has_value();
  out.kv = cache_geometry(input.config, options);
  out.numerics = numerics_of(input.config, options);
  if (options.numeric_profile == "engine") out.latent_norm_eps = static_cast<double>(input.config.rms_norm_eps);
  // Rank 0's share stands for all: the others' are as large, or the last of a vocabulary smaller.
  const Ranks ranks = ranks_of(options);
  const WeightMap share = share_of(input.map, ranks, 0);
  SiteList sites = declare_sites(input.config, share, out.kv, out.numerics, activation_formats(options), ranks);
  out.sites = std::move(sites.ids);
  PLUMB_TRY(const DeviceInfo device, under_ceiling(input.device, options.isa));
  PLUMB_TRY(out.plan, resolve(std::move(sites.decls), input.registry, device,
                              {.backend = options.backend,
                               .pinned = options.pinned,
                               .buckets = buckets_up_to(options.max_rows),
                               .deterministic = options.deterministic}));
  out.plan.numeric_profile = options.numeric_profile;
  out.plan.draft_layer = out.with_mtp ? input.config.num_hidden_layers : -1;
  out.plan.phases = phases_of(options, out.with_mtp);
  PLUMB_TRY_STATUS(fit_memory(input, options, out));
  add_flags(input, options, out);
  add_notes(input, options, out);
  add_warnings(input, out);
  return out;
}

}  // namespace plumb

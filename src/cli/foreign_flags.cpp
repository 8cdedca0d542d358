#include "cli/foreign_flags.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>

namespace plumb {
namespace {

enum class Do {
  Rename,    // `ours` with the same value
  Model,     // the value is the model
  Switch,    // `ours`, without a value
  Values,    // `ours` is a list "theirs=--ours value" or "theirs": what each value becomes; nothing: it is so already
  Kernel,    // `ours` is an op: its kernels are pinned by name
  Always,    // asks for what is always so
  Refuse,    // takes a value
  RefuseOn,  // takes none
};

struct Rule {
  std::string_view name;
  Do what;
  std::string_view ours;
  std::string_view why;
};

constexpr std::string_view kNoRemote = "no code of a checkpoint is ever run: the flag has nothing to act on";
constexpr std::string_view kNoGraphs =
    "steps on a GPU are always replayed as graphs, on a CPU there are none: the flag has nothing to act on";
constexpr std::string_view kNoReduce = "there is no all-reduce to choose or fuse: the flag has nothing to act on";
constexpr std::string_view kOneEach =
    "ranks divide a model by tensor parallelism, --tp N, and experts whole with --expert-parallel";
constexpr std::string_view kOwnConfig = "the checkpoint's config.json is what is run; change a copy of it";
constexpr std::string_view kNoTuning = "there is nothing of the kind to tune";
constexpr std::string_view kKernel = "kernels are chosen by contract and pinned by our names";

// One home for what becomes of each flag; names as in the two programs' own lists of server arguments.
constexpr Rule kRules[] = {
    {"--model", Do::Model, "", ""},
    {"--model-path", Do::Model, "", ""},
    {"--tensor-parallel-size", Do::Rename, "--tp", ""},
    {"--tp-size", Do::Rename, "--tp", ""},
    {"--max-model-len", Do::Rename, "--context", ""},
    {"--context-length", Do::Rename, "--context", ""},
    {"--max-num-seqs", Do::Rename, "--max-running", ""},
    {"--max-running-requests", Do::Rename, "--max-running", ""},
    {"--max-num-batched-tokens", Do::Rename, "--max-batch-tokens", ""},
    {"--max-prefill-tokens", Do::Rename, "--max-batch-tokens", ""},
    {"--chunked-prefill-size", Do::Rename, "--chunk-tokens", ""},
    {"--max-queued-requests", Do::Rename, "--queue", ""},
    {"--mem-fraction-static", Do::Rename, "--memory-fraction", ""},
    {"--gpu-memory-utilization", Do::Rename, "--memory-fraction", ""},
    {"--kv-cache-dtype", Do::Values,
     "auto=--kv auto,f32=--kv f32,bf16=--kv bf16,bfloat16=--kv bf16,fp8=--kv fp8,fp8_e4m3=--kv fp8,fp8_ds_mla=--kv fp8",
     "the cache is kept in bf16, fp8 (E4M3, a scale for each token and 128 values) or f32"},
    {"--dtype", Do::Values, "auto,bfloat16=--activations bf16,bf16=--activations bf16,float32=--activations f32",
     "results are f32, or bf16 by --activations bf16"},
    {"--page-size", Do::Values, "64", "a page of the cache has 64 tokens"},
    {"--block-size", Do::Values, "64", "a page of the cache has 64 tokens"},
    {"--load-format", Do::Values, "auto,safetensors", "checkpoints are read as safetensors"},
    {"--reasoning-parser", Do::Values, "glm45", "thinking is told apart as glm45 does it, which these models need"},
    {"--tool-call-parser", Do::Values, "glm45,glm47", "calls are read in GLM's form, which these models write"},
    {"--enable-auto-tool-choice", Do::Always, "", "a request's tools are always offered to the model"},
    {"--chat-template-content-format", Do::Values, "auto",
     "a message's content reaches the template as the client sent it: text as text, parts as parts"},
    {"--attention-backend", Do::Kernel, "mla_attend", ""},
    {"--prefill-attention-backend", Do::Kernel, "mla_attend", ""},
    {"--decode-attention-backend", Do::Kernel, "mla_attend", ""},
    {"--nsa-prefill-backend", Do::Kernel, "mla_attend", ""},
    {"--nsa-decode-backend", Do::Kernel, "mla_attend", ""},
    {"--dsa-prefill-backend", Do::Kernel, "mla_attend", ""},
    {"--dsa-decode-backend", Do::Kernel, "mla_attend", ""},
    {"--moe-runner-backend", Do::Kernel, "moe", ""},
    {"--moe-backend", Do::Kernel, "moe", ""},
    {"--fp8-gemm-backend", Do::Kernel, "linear", ""},
    {"--fp8-gemm-runner-backend", Do::Kernel, "linear", ""},
    {"--fp4-gemm-backend", Do::Kernel, "linear", ""},
    {"--fp4-gemm-runner-backend", Do::Kernel, "linear", ""},
    {"--sampling-backend", Do::Kernel, "sample", ""},
    {"--disable-radix-cache", Do::Switch, "--no-prefix-cache", ""},
    {"--no-enable-prefix-caching", Do::Switch, "--no-prefix-cache", ""},
    {"--enable-prefix-caching", Do::Always, "",
     "prompts share their common beginnings unless --no-prefix-cache is given"},
    {"--enable-chunked-prefill", Do::Always, "", "long prompts are computed in chunks (--chunk-tokens)"},
    {"--enable-metrics", Do::Always, "", "/metrics is always there"},
    {"--enable-cache-report", Do::Always, "", "usage tells the cached tokens of a prompt"},
    {"--sleep-on-idle", Do::Always, "", "threads without work sleep"},
    {"--data-parallel-size", Do::Values, "1", kOneEach},
    {"--dp-size", Do::Values, "1", kOneEach},
    {"--dp", Do::Values, "1", kOneEach},
    {"--pipeline-parallel-size", Do::Values, "1", kOneEach},
    {"--pp-size", Do::Values, "1", kOneEach},
    {"--pp", Do::Values, "1", kOneEach},
    {"--expert-parallel-size", Do::Values, "1", kOneEach},
    {"--ep-size", Do::Values, "1", kOneEach},
    {"--ep", Do::Values, "1", kOneEach},
    {"--decode-context-parallel-size", Do::Values, "1", kOneEach},
    {"--nnodes", Do::Values, "1", kOneEach},
    {"--enable-expert-parallel", Do::Switch, "--expert-parallel", ""},
    {"--enable-ep-moe", Do::Switch, "--expert-parallel", ""},
    {"--enable-dp-attention", Do::RefuseOn, "", kOneEach},
    {"--enable-dp-lm-head", Do::RefuseOn, "", kOneEach},
    {"--speculative-eagle-topk", Do::Values, "1", "a round drafts one chain of tokens"},
    {"--speculative-draft-model-path", Do::Refuse, "", "the model's own next-n layer drafts: --draft-tokens N"},
    {"--trust-remote-code", Do::RefuseOn, "", kNoRemote},
    {"--disable-cuda-graph", Do::RefuseOn, "", kNoGraphs},
    {"--disable-piecewise-cuda-graph", Do::RefuseOn, "", kNoGraphs},
    {"--enforce-eager", Do::RefuseOn, "", kNoGraphs},
    {"--cuda-graph-max-bs", Do::Refuse, "", kNoGraphs},
    {"--cuda-graph-bs", Do::Refuse, "", kNoGraphs},
    {"--compilation-config", Do::Refuse, "", kNoGraphs},
    {"--disable-custom-all-reduce", Do::RefuseOn, "", kNoReduce},
    {"--enable-flashinfer-allreduce-fusion", Do::RefuseOn, "", kNoReduce},
    {"--enable-symm-mem", Do::RefuseOn, "", kNoReduce},
    {"--disable-shared-experts-fusion", Do::RefuseOn, "",
     "a shared expert is never fused with routed ones: the flag has nothing to act on"},
    {"--enable-nan-detection", Do::Always, "", "no token is drawn from a row that is not finite"},
    {"--json-model-override-args", Do::Refuse, "", kOwnConfig},
    {"--hf-overrides", Do::Refuse, "", kOwnConfig},
    {"--model-loader-extra-config", Do::Refuse, "", "all cores load a checkpoint: --threads N"},
    {"--tokenizer", Do::Refuse, "", "the tokenizer is read from the model's own folder"},
    {"--tokenizer-path", Do::Refuse, "", "the tokenizer is read from the model's own folder"},
    {"--chat-template", Do::Refuse, "", "the template is read from the model's own folder"},
    {"--revision", Do::Refuse, "", "a revision is part of the model's name: org/name@revision"},
    {"--max-total-tokens", Do::Refuse, "", "the cache is counted in pages of 64 tokens: --pages N"},
    {"--seed", Do::Refuse, "", "a seed belongs to a request"},
    {"--random-seed", Do::Refuse, "", "a seed belongs to a request"},
    {"--stream-interval", Do::Refuse, "", "each token is sent when it is there"},
    {"--scheduler-recv-interval", Do::Refuse, "", kNoTuning},
    {"--tokenizer-worker-num", Do::Refuse, "", kNoTuning},
    {"--schedule-policy", Do::Refuse, "", kNoTuning},
    {"--schedule-conservativeness", Do::Refuse, "", kNoTuning},
    {"--num-continuous-decode-steps", Do::Refuse, "", kNoTuning},
    {"--watchdog-timeout", Do::Refuse, "", kNoTuning},
    {"--swap-space", Do::Refuse, "", "sequences that are put off are computed again, not swapped"},
    {"--cpu-offload-gb", Do::Refuse, "", "weights stay where their kernels read them; plumb plan says what fits"},
    {"--warmups", Do::Refuse, "", kNoTuning},
    {"--skip-server-warmup", Do::RefuseOn, "", kNoTuning},
    {"--log-level-http", Do::Refuse, "", "one log, one level: --log-level"},
    {"--uvicorn-log-level", Do::Refuse, "", "one log, one level: --log-level"},
    {"--enable-log-requests", Do::RefuseOn, "", "prompts are never logged"},
    {"--disable-log-requests", Do::RefuseOn, "", "prompts are never logged: the flag has nothing to act on"},
    {"--limit-mm-per-prompt", Do::Refuse, "", "these models read text alone"},
};

const Rule* find_rule(std::string_view name) {
  for (const Rule& rule : kRules)
    if (rule.name == name) return &rule;
  return nullptr;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

class Translator {
 public:
  explicit Translator(const std::vector<std::string>& arguments) : in_(arguments) {}
  Result<TranslatedFlags> run();

 private:
  void apply(const Rule& rule, const std::string& value);
  void values(const Rule& rule, const std::string& value);
  bool speculation(const std::string& name, const std::string& value);
  void finish_speculation();
  // `ours` may hold a value: "--kv fp8".
  void emit(const std::string& ours, const std::string& theirs);
  void refuse(const std::string& what, std::string_view why) { refused_ += "\n  " + what + ": " + std::string(why); }

  const std::vector<std::string>& in_;
  TranslatedFlags out_{};
  std::string refused_{};
  std::optional<std::string> algorithm_{}, steps_{}, draft_tokens_{};
  std::string steps_from_{};
};

void Translator::emit(const std::string& ours, const std::string& theirs) {
  const size_t space = ours.find(' ');
  out_.arguments.push_back(ours.substr(0, space));
  if (space != std::string::npos) out_.arguments.push_back(ours.substr(space + 1));
  std::string name = ours.substr(2, space == std::string::npos ? space : space - 2);
  std::replace(name.begin(), name.end(), '-', '_');
  out_.origins[name] = theirs;
}

void Translator::values(const Rule& rule, const std::string& value) {
  std::istringstream list{std::string(rule.ours)};
  std::string known;
  for (std::string entry; std::getline(list, entry, ',');) {
    const size_t equals = entry.find('=');
    const std::string theirs = entry.substr(0, equals);
    known += (known.empty() ? "" : ", ") + theirs;
    if (theirs != value) continue;
    if (equals == std::string::npos)
      out_.fulfilled.push_back({std::string(rule.name.substr(2)), value, std::string(rule.why)});
    else
      emit(entry.substr(equals + 1), std::string(rule.name));
    return;
  }
  refuse(std::string(rule.name) + " " + value, std::string(rule.why) + "; known here: " + known);
}

void Translator::apply(const Rule& rule, const std::string& value) {
  const std::string name(rule.name);
  switch (rule.what) {
    case Do::Rename:
      return emit(std::string(rule.ours) + " " + value, name);
    case Do::Model:
      return out_.arguments.push_back(value);
    case Do::Switch:
      return emit(std::string(rule.ours), name);
    case Do::Values:
      return values(rule, value);
    case Do::Kernel: {
      const std::string op(rule.ours);
      if (value == "auto") return out_.fulfilled.push_back({name.substr(2), value, std::string(kKernel)});
      if (value.find('.') != std::string::npos) return emit("--kernel " + op + "=" + value, name);
      return refuse(name + " " + value, std::string(kKernel) + ": --kernel " + op +
                                            "=NAME; plumb plan MODEL --json lists the " + "kernels of " + op +
                                            " that fit, and why the others do not");
    }
    case Do::Always:
      return out_.fulfilled.push_back({name.substr(2), "on", std::string(rule.why)});
    case Do::Refuse:
      return refuse(name + " " + value, rule.why);
    case Do::RefuseOn:
      return refuse(name, rule.why);
  }
}

// Drafting is said by several flags together. True: `name` is one of them.
bool Translator::speculation(const std::string& name, const std::string& value) {
  if (name == "--speculative-algorithm" || name == "--speculative-algo" || name == "--speculative-config.method") {
    algorithm_ = value;
  } else if (name == "--speculative-num-steps" || name == "--speculative-config.num_speculative_tokens") {
    steps_ = value;
    steps_from_ = name;
  } else if (name == "--speculative-num-draft-tokens") {
    draft_tokens_ = value;
  } else if (name == "--speculative-config") {
    const nlohmann::json config = nlohmann::json::parse(value, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) {
      refuse(name + " " + value, "it is not a JSON object");
      return true;
    }
    for (const auto& [key, entry] : config.items()) {
      const std::string text = entry.is_string() ? entry.get<std::string>() : entry.dump();
      if (key == "method")
        algorithm_ = text;
      else if (key == "num_speculative_tokens")
        steps_ = text, steps_from_ = name;
      else
        refuse(name + " with '" + key + "'", "the model's own next-n layer drafts: --draft-tokens N says it all");
    }
  } else {
    return false;
  }
  return true;
}

void Translator::finish_speculation() {
  const auto number = [](const std::optional<std::string>& text) {
    int value = -1;
    if (text) std::from_chars(text->data(), text->data() + text->size(), value);
    return value;
  };
  if (algorithm_) {
    const std::string method = upper(*algorithm_);
    if (method != "EAGLE" && method != "NEXTN" && method != "MTP" && method != "DEEPSEEK_MTP" && method != "GLM_MTP")
      return refuse("speculation by " + *algorithm_, "the model's own next-n layer drafts: --draft-tokens N");
    if (!steps_ && !draft_tokens_)
      return refuse("speculation by " + *algorithm_,
                    "it does not say how many tokens a round drafts: --draft-tokens 1 to 3");
  }
  if (steps_ && draft_tokens_ && number(draft_tokens_) != number(steps_) + 1)
    return refuse("--speculative-num-draft-tokens " + *draft_tokens_,
                  "a chain of " + *steps_ + " drafts verifies one token more than it drafts; --draft-tokens " +
                      *steps_ + " says it all");
  if (steps_)
    emit("--draft-tokens " + *steps_, steps_from_);
  else if (draft_tokens_)
    emit("--draft-tokens " + std::to_string(number(draft_tokens_) - 1), "--speculative-num-draft-tokens");
}

Result<TranslatedFlags> Translator::run() {
  for (size_t i = 0; i < in_.size(); ++i) {
    if (in_[i] == "--") {
      out_.arguments.insert(out_.arguments.end(), in_.begin() + static_cast<std::ptrdiff_t>(i), in_.end());
      break;
    }
    const size_t equals = in_[i].find('=');
    const std::string name = in_[i].substr(0, equals);
    const Rule* rule = find_rule(name);
    const bool drafts = name.starts_with("--speculative-") && rule == nullptr;
    if (!drafts && rule == nullptr) {
      out_.arguments.push_back(in_[i]);
      continue;
    }
    const bool takes_value =
        drafts || (rule->what != Do::Switch && rule->what != Do::Always && rule->what != Do::RefuseOn);
    std::string value;
    if (takes_value && equals != std::string::npos) value = in_[i].substr(equals + 1);
    if (takes_value && equals == std::string::npos) {
      if (i + 1 == in_.size()) return Error{Code::Usage, name + " needs a value", "", {}};
      value = in_[++i];
    }
    if (rule != nullptr)
      apply(*rule, value);
    else if (!speculation(name, value))
      out_.arguments.insert(out_.arguments.end(), {name, value});
  }
  finish_speculation();
  if (refused_.empty()) return std::move(out_);
  std::string left = "plumb";
  for (const std::string& argument : out_.arguments)
    left += argument.find(' ') == std::string::npos ? " " + argument : " '" + argument + "'";
  return Error{Code::Unsupported, "flags of another server that cannot be honoured:" + refused_, "", {left}};
}

}  // namespace

Result<TranslatedFlags> translate_foreign_flags(const std::vector<std::string>& arguments) {
  return Translator(arguments).run();
}

}  // namespace plumb

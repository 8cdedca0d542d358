#include "cli/service.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "cli/build_info.h"
#include "cli/fault_options.h"

namespace plumb {
namespace {

// Every so many steps the ranks compare the bits of what they compute alike, while they serve.
constexpr int kWatchedSteps = 64;
// Between ranks during the checks: a rank's first steps bring its weights into memory, from a disk that may be slow.
constexpr int kFirstStepsMs = 600'000;

// Speculation needs the MTP layer; without it the layer is not loaded.
Status choose_speculation(ModelOptions& options, const EngineFlags& flags) {
  ModelPlanOptions& plan = options.plan;
  if (plan.mtp != "auto" && plan.mtp != "on" && plan.mtp != "off")
    return Error{
        Code::Usage, "--mtp '" + plan.mtp + "' is not a known value", "", {"--mtp auto", "--mtp on", "--mtp off"}};
  const auto drafts = plan.sources.find("draft_tokens");
  const std::string because = (drafts == plan.sources.end() ? "default" : drafts->second) + " draft_tokens " +
                              std::to_string(flags.draft_tokens);
  if (flags.draft_tokens == 0) {
    if (plan.mtp == "on")
      return Error{Code::Unsupported,
                   "--mtp on has nothing to act on",
                   "--draft-tokens is 0, so nothing would be drafted",
                   {"--draft-tokens 1", "--mtp auto"}};
    plan.mtp = "off";
    plan.sources.try_emplace("mtp", because);
    return Ok{};
  }
  if (plan.mtp == "off")
    return Error{Code::Unsupported,
                 "--draft-tokens " + std::to_string(flags.draft_tokens) + " cannot be honoured",
                 "--mtp off leaves out the layer that drafts",
                 {"--mtp on"}};
  plan.mtp = "on";
  plan.sources.try_emplace("mtp", because);
  return Ok{};
}

// Known before anything is read: a step has a row for each running sequence and each draft, and one for a prompt.
Status check_steps(const EngineFlags& flags, bool chunk_asked) {
  const int rows = flags.max_running * (1 + flags.draft_tokens);
  if (chunk_asked && flags.chunk_tokens > flags.max_batch_tokens)
    return Error{Code::Unsupported,
                 "--chunk-tokens " + std::to_string(flags.chunk_tokens) + " cannot be honoured",
                 "a step has --max-batch-tokens " + std::to_string(flags.max_batch_tokens) + " rows",
                 {"--max-batch-tokens " + std::to_string(flags.chunk_tokens + rows),
                  "--chunk-tokens " + std::to_string(flags.max_batch_tokens)}};
  if (flags.max_batch_tokens > rows) return Ok{};
  return Error{Code::Unsupported,
               "--max-batch-tokens " + std::to_string(flags.max_batch_tokens) + " cannot be honoured",
               std::to_string(flags.max_running) + " running sequences (--max-running) with " +
                   std::to_string(flags.draft_tokens) + " drafts each (--draft-tokens) take up to " +
                   std::to_string(rows) + " rows of a step, and prompts need at least one",
               {"--max-batch-tokens " + std::to_string(rows + 1) + " or more", "a smaller --max-running"}};
}

EngineOptions engine_options(const EngineFlags& flags, int max_context) {
  return {.max_running = flags.max_running,
          .max_batch_tokens = flags.max_batch_tokens,
          .chunk_tokens = flags.chunk_tokens,
          .max_context = max_context,
          .queue_limit = flags.queue_limit,
          .prefix_cache = !flags.no_prefix_cache,
          .draft_tokens = flags.draft_tokens};
}

// Ids that the model has no row for would be refused request by request, by a server that says it is ready.
Status check_tokenizer(const Tokenizer& tokenizer, const ModelConfig& config) {
  if (tokenizer.vocab_size() <= config.vocab_size) return Ok{};
  return Error{Code::Corrupt,
               "tokenizer.json has ids up to " + std::to_string(tokenizer.vocab_size() - 1),
               "the model's (vocab_size in config.json) end at " + std::to_string(config.vocab_size - 1),
               {"the tokenizer.json that belongs to this checkpoint"}};
}

Status read_texts(Service& service) {
  const std::filesystem::path& folder = service.source.folder;
  PLUMB_TRY(service.generation, read_generation_config(folder));
  Result<Tokenizer> tokenizer = Tokenizer::load(folder);
  if (!tokenizer && tokenizer.error().code == Code::NotFound)
    tokenizer.error().works = {
        "the model's tokenizer.json in the same folder (plumb synth --tokenizer FOLDER puts one there)",
        "plumb logits --ids FILE and plumb check, which need none"};
  PLUMB_TRY(service.tokenizer, std::move(tokenizer));
  PLUMB_TRY(const ModelConfig config, read_model_config(folder));
  PLUMB_TRY_STATUS(check_tokenizer(*service.tokenizer, config));
  Result<ChatTemplate> chat = ChatTemplate::load(folder);
  if (chat)
    service.chat_template = std::move(*chat);
  else if (chat.error().code != Code::NotFound)
    return std::move(chat).error();
  else
    log_warn("the checkpoint has no chat template: chat requests will be refused, completions work");
  return Ok{};
}

Status load_weights(Service& service, ModelOptions& options, const RankGroup* group) {
  LoadBar bar;
  InstanceOptions instance{.plan = options.plan};
  instance.loaded = fault_planter(options, service.registry);
  const bool follows = group != nullptr && group->follows();
  if (!follows) instance.load.progress = [&bar](const LoadProgress& p) { bar.update(p); };
  if (group != nullptr) {
    instance.ranks_here = group->ranks_here;
    instance.cuda_device = group->cuda_device;
    instance.unreachable = group->unreachable;
    instance.comm = group->comm.get();
  }
  PLUMB_TRY(service.instance, open_instance(service.source.folder, service.registry, *service.pool, instance));
  bar.finish();
  if (follows) return Ok{};
  for (const std::string& warning : service.model().opened.checkpoint->warnings()) log_warn(warning);
  return Ok{};
}

// What would make ranks compute different things.
Status compare_ranks(const Service& service, RankGroup& group) {
  PLUMB_TRY_STATUS(agree(group, "checkpoint", service.checkpoint_id()));
  return agree(group, "plan", service.model().planned.plan.fingerprint());
}

Status start_engine(Service& service, const EngineFlags& flags, const ServiceOptions& with) {
  EngineOptions options = engine_options(flags, service.model().planned.max_context);
  // Rows of the embedding beyond the tokenizer's ids are padding and must never be drawn.
  options.vocab_size = std::min(service.model().config().vocab_size, service.tokenizer->vocab_size());
  options.guard = with.guard;
  options.guard.registry = &service.registry;
  options.guard.origin = {
      .build = build_id(), .checkpoint = service.checkpoint_id(), .plan = service.model().planned.plan.fingerprint()};
  const Forward forward = service.instance->forward();
  RankLink* const link = forward.link;
  if (link != nullptr) {
    options.rank_timeout_ms = kFirstStepsMs;
    link->watch_every(1);  // every step of the checks
  }
  if (with.before_engine) {
    Status checked = with.before_engine(service, forward, options);
    if (link != nullptr && link->failed()) return *link->comm().failure();  // whatever the checks made of it
    PLUMB_TRY_STATUS(std::move(checked));
  }
  if (link != nullptr) {
    options.rank_timeout_ms = with.group->timeout_ms;
    link->watch_every(kWatchedSteps);
  }
  PLUMB_TRY(service.engine, Engine::start(forward, options));
  return Ok{};
}

}  // namespace

void add_engine_options(CLI::App& command, ModelOptions& options, EngineFlags& flags) {
  const auto add = [&](CLI::Option* option) { options.options.push_back(option); };
  add(command.add_option("--max-running", flags.max_running, "Sequences that decode together")
          ->check(CLI::Range(1, 4096)));
  add(command.add_option("--max-batch-tokens", flags.max_batch_tokens, "Rows of one step")
          ->check(CLI::Range(2, 65536)));
  add(command.add_option("--chunk-tokens", flags.chunk_tokens, "Prompt tokens of one sequence in a step")
          ->check(CLI::Range(1, 65536)));
  add(command.add_option("--queue", flags.queue_limit, "Requests that may wait; beyond it the answer is 429")
          ->check(CLI::Range(0, 1'000'000)));
  add(command.add_option("--draft-tokens", flags.draft_tokens, "Tokens drafted by the MTP layer in a round; 0: off")
          ->check(CLI::Range(0, 3)));
  add(command.add_flag("--no-prefix-cache", flags.no_prefix_cache, "Compute every prompt from its first token"));
}

void add_engine_flags(const ModelOptions& options, const EngineFlags& flags, Plan& plan) {
  const auto add = [&](const char* name, const std::string& value) {
    const auto source = options.plan.sources.find(name);
    const bool asked = source != options.plan.sources.end();
    plan.flags.push_back({.name = name,
                          .asked = asked ? options.plan.asked.at(name) : "default",
                          .effective = value,
                          .source = asked ? source->second : "default"});
  };
  add("chunk_tokens", std::to_string(std::min(flags.chunk_tokens, flags.max_batch_tokens)));
  add("queue", std::to_string(flags.queue_limit));
  add("draft_tokens", std::to_string(flags.draft_tokens));
  add("no_prefix_cache", flags.no_prefix_cache ? "on" : "off");
  plan.flags.insert(plan.flags.end(), options.fulfilled.begin(), options.fulfilled.end());
}

std::string Service::checkpoint_id() const { return Hash64().add(model().opened.checkpoint->identity_hash()).hex(); }

Result<std::vector<int32_t>> Service::chat_ids(const nlohmann::ordered_json& messages,
                                               const nlohmann::ordered_json& kwargs) const {
  if (!chat_template)
    return Error{Code::NotFound, source.name + " has no chat template", "", {"--raw: the prompt as it is"}};
  PLUMB_TRY(const Rendered rendered, chat_template->render(messages, nlohmann::ordered_json(), kwargs));
  return tokenizer->encode(rendered.text, {.untrusted = rendered.untrusted});
}

std::string Service::fingerprint() const {
  return Hash64()
      .add(model().opened.checkpoint->identity_hash())
      .add(model().planned.plan.fingerprint())
      .add(build_id())
      .hex();
}

Status finish_service_options(ModelOptions& options, const EngineFlags& flags, const CliContext& context) {
  PLUMB_TRY_STATUS(finish_model_options(options, context));
  PLUMB_TRY_STATUS(choose_speculation(options, flags));
  PLUMB_TRY_STATUS(check_steps(flags, options.plan.sources.contains("chunk_tokens")));
  ModelPlanOptions& plan = options.plan;
  for (const auto& [plan_name, flag] : {std::pair("max_rows", "max_batch_tokens"), {"max_sequences", "max_running"}}) {
    const auto given = plan.sources.find(flag);
    if (given == plan.sources.end()) continue;
    plan.asked[plan_name] = plan.asked[flag];
    plan.sources[plan_name] = given->second + " " + flag;
  }
  ask_plan_for(engine_options(flags, plan.max_context), plan);
  plan.draft_tokens = flags.draft_tokens;
  return Ok{};
}

Result<std::unique_ptr<Service>> start_service(ModelOptions& options, const EngineFlags& flags,
                                               const CliContext& context, const ServiceOptions& with) {
  PLUMB_TRY_STATUS(finish_service_options(options, flags, context));
  auto service = std::make_unique<Service>();
  PLUMB_TRY(service->source, resolve_model(options.model, context.hf_home));
  PLUMB_TRY_STATUS(read_texts(*service));
  service->registry = make_registry();
  service->pool = std::make_unique<ThreadPool>(options.threads);
  PLUMB_TRY_STATUS(load_weights(*service, options, with.group));
  add_engine_flags(options, flags, service->instance->model->planned.plan);
  service->eos_ids.assign(service->model().config().eos_token_ids.begin(),
                          service->model().config().eos_token_ids.end());
  for (const int id : service->generation.eos_token_ids)
    if (std::find(service->eos_ids.begin(), service->eos_ids.end(), id) == service->eos_ids.end())
      service->eos_ids.push_back(id);
  if (with.group != nullptr) {
    PLUMB_TRY_STATUS(compare_ranks(*service, *with.group));
    if (with.group->follows()) return service;
  }
  PLUMB_TRY_STATUS(start_engine(*service, flags, with));
  return service;
}

}  // namespace plumb

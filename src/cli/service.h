// A model ready to generate: checkpoint, plan, weights, cache, engine, tokenizer and template. What run, chat and serve
// stand on.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/thread_pool.h"
#include "checkpoint/model_source.h"
#include "cli/model_options.h"
#include "cli/ranks.h"
#include "engine/engine.h"
#include "model/instance.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace plumb {

struct EngineFlags {
  int max_running = 64;
  int max_batch_tokens = 1024;
  int chunk_tokens = 512;
  int queue_limit = 1024;
  int draft_tokens = 0;
  bool no_prefix_cache = false;
};
void add_engine_options(CLI::App& command, ModelOptions& options, EngineFlags& flags);
// Fills options.plan with what a server started with these options plans, so that `plumb plan` shows the same.
Status finish_service_options(ModelOptions& options, const EngineFlags& flags, const CliContext& context);
// The plan knows rows and sequences; what else the engine was asked for is shown beside them.
void add_engine_flags(const ModelOptions& options, const EngineFlags& flags, Plan& plan);

// Stays where it is; members are ended in reverse order.
struct Service {
  ModelSource source{};
  Registry registry{};
  std::unique_ptr<ThreadPool> pool{};
  std::unique_ptr<ModelInstance> instance{};
  GenerationConfig generation{};
  std::optional<Tokenizer> tokenizer{};
  std::optional<ChatTemplate> chat_template{};
  std::vector<int32_t> eos_ids{};    // of config.json and generation_config.json
  std::unique_ptr<Engine> engine{};  // none in a rank that follows

  const LoadedModel& model() const { return *instance->model; }
  // Of checkpoint, plan and build: 16 hex digits, in every answer's system_fingerprint.
  std::string fingerprint() const;
  std::string checkpoint_id() const;
  // Messages through the chat template, as token ids. Error (NotFound): the checkpoint has none.
  Result<std::vector<int32_t>> chat_ids(const nlohmann::ordered_json& messages,
                                        const nlohmann::ordered_json& kwargs) const;
};
// Called when all is loaded and the engine is about to start on it; an Error ends the start.
using BeforeEngine =
    std::function<Status(const Service& service, const Forward& forward, const EngineOptions& options)>;
struct ServiceOptions {
  GuardOptions guard{};  // captures name their origin by themselves
  BeforeEngine before_engine{};
  RankGroup* group = nullptr;  // of ranks that share the model; those that follow get no engine
};
Result<std::unique_ptr<Service>> start_service(ModelOptions& options, const EngineFlags& flags,
                                               const CliContext& context, const ServiceOptions& with = {});

}  // namespace plumb

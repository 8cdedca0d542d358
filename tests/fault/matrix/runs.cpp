#include "matrix/runs.h"

#include <cstdio>
#include <filesystem>

#include "support/paths.h"

namespace plumb::matrix {

std::string folder_of(const Setting& setting) {
  std::string folder = plumb::testing::model_path(setting.checkpoint);
  return std::filesystem::exists(folder) ? folder : plumb::testing::extra_data_path("models/" + setting.checkpoint);
}

ModelPlanOptions plan_options(const Setting& setting) {
  return {.backend = setting.backend,
          .kv = setting.kv,
          .index_keys = setting.index_keys,
          .mtp = "off",
          .max_rows = kRows,
          .max_sequences = kSequences,
          .max_context = 192};
}

EngineOptions engine_options(const Registry& registry, int chunk) {
  EngineOptions options{.max_running = kSequences, .max_batch_tokens = kRows, .chunk_tokens = chunk};
  options.prefix_cache = false;
  options.guard.registry = &registry;
  return options;
}

GenerateRequest request_of(const char* id, int prompt, int answer, int seed) {
  GenerateRequest r{.request_id = id, .max_tokens = answer};
  for (int t = 0; t < prompt; ++t) r.prompt_ids.push_back(10 + (t * 7 + seed * 13) % 200);
  r.sampling.temperature = 0;
  return r;
}

void tell(const Outcome& outcome) {
  const Case& one = outcome.planted;
  std::printf("%s at %s, %s; %s: %s; quick '%s' full '%s'; served %lld rows, %s %s\n", one.kind().c_str(),
              one.place.c_str(), one.phase().c_str(), outcome.setting.c_str(),
              outcome.found ? outcome.verdict.c_str() : "no effect", outcome.quick.c_str(), outcome.full.c_str(),
              static_cast<long long>(outcome.served_rows_changed), outcome.by.c_str(), outcome.incident.c_str());
  std::fflush(stdout);
}

}  // namespace plumb::matrix

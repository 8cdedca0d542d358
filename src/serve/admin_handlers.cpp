// What operators ask: health, metrics, models, plan, verification.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "serve/handlers.h"
#include "serve/strict_json.h"

namespace plumb {

namespace {

using Json = nlohmann::ordered_json;

const ServedModel* loaded_model(ServeContext& context, Exchange& exchange) {
  const ServedModel* model = context.model.load(std::memory_order_acquire);
  if (model == nullptr) {
    exchange.respond(error_response(unavailable("the model is still loading", "loading", 5)));
  }
  return model;
}

bool engine_alive(const ServedModel* model) { return model != nullptr && model->services.engine->alive(); }

Json model_entry(const ServedModel& model, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", model.services.created},
          {"owned_by", "plumb"},
          {"max_model_len", model.services.engine->max_context()},
          {"root", model.services.root}};
}

}  // namespace

std::string_view state_name(ServerState state) {
  switch (state) {
    case ServerState::Loading:
      return "loading";
    case ServerState::Verifying:
      return "verifying";
    case ServerState::Ready:
      return "ready";
    case ServerState::Draining:
      return "draining";
    case ServerState::Failed:
      return "failed";
  }
  return "failed";
}

void handle_live(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  exchange->respond({.body = printed({{"state", state_name(context.state.load())}})});
}

void handle_health(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  const ServerState state = context.state.load(std::memory_order_acquire);
  const ServedModel* model = context.model.load(std::memory_order_acquire);
  const bool dead = state == ServerState::Ready && !engine_alive(model);
  Json body = {{"state", dead ? "failed" : state_name(state)}};
  body["verification"] = state == ServerState::Verifying          ? "running"
                         : state == ServerState::Failed           ? "failed"
                         : context.verification.load() == nullptr ? "unverified"
                                                                  : "verified";
  if (dead) body["reason"] = "the engine makes no progress";
  const bool ready = state == ServerState::Ready && !dead;
  HttpResponse response{.status = ready ? 200 : 503, .body = printed(body)};
  if (!ready) response.headers.emplace_back("Retry-After", "5");
  exchange->respond(std::move(response));
}

void handle_metrics(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  const ServedModel* model = context.model.load(std::memory_order_acquire);
  EngineStats stats;
  if (model != nullptr) stats = model->services.engine->stats();
  const Metrics::Gauges gauges{.connections = context.connections ? context.connections() : 0,
                               .ready = context.state.load() == ServerState::Ready && engine_alive(model)};
  exchange->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .body = context.metrics.text(
                         model == nullptr ? nullptr : &stats, gauges,
                         context.options.vllm_metrics ? context.options.served_names.front() : std::string())});
}

// /v1/models, and /v1/models/{id} where an id may hold slashes.
void handle_models(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  const ServedModel* model = loaded_model(context, *exchange);
  if (model == nullptr) return;
  const std::vector<std::string>& names = context.options.served_names;
  static constexpr std::string_view kList = "/v1/models";
  const std::string& path = exchange->request().path;
  if (path.size() > kList.size() + 1) {
    const std::string id = path.substr(kList.size() + 1);
    if (std::find(names.begin(), names.end(), id) == names.end()) {
      return exchange->respond(error_response(
          not_found("the model '" + id.substr(0, 200) + "' is not served here", "model", "model_not_found")));
    }
    return exchange->respond({.body = printed(model_entry(*model, id))});
  }
  Json data = Json::array();
  for (const std::string& name : names) data.push_back(model_entry(*model, name));
  exchange->respond({.body = printed({{"object", "list"}, {"data", std::move(data)}})});
}

void handle_model_info(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  const ServedModel* model = loaded_model(context, *exchange);
  if (model == nullptr) return;
  const ModelServices& s = model->services;
  Json build = Json::parse(s.build_json.empty() ? "{}" : s.build_json, nullptr, /*allow_exceptions=*/false);
  if (build.is_discarded()) build = Json::object();
  const Json body = {{"served_names", context.options.served_names},
                     {"root", s.root},
                     {"model_type", s.model_type},
                     {"max_model_len", s.engine->max_context()},
                     {"vocab_size", s.vocab_size},
                     {"eos_token_ids", s.eos_ids},
                     {"weight_format", s.weight_format},
                     {"kv_format", s.kv_format},
                     {"logprobs", "of the model's distribution, before temperature, penalties, biases and masks"},
                     {"default_sampling",
                      {{"temperature", model->limits.default_temperature},
                       {"top_p", model->limits.default_top_p},
                       {"top_k", model->limits.default_top_k}}},
                     {"chat_template", s.chat_template != nullptr},
                     {"plan_fingerprint", s.fingerprint},
                     {"build", std::move(build)}};
  exchange->respond({.body = printed(body)});
}

void handle_plan(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  const ServedModel* model = loaded_model(context, *exchange);
  if (model != nullptr) exchange->respond({.body = model->services.plan_json});
}

void handle_verification(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  const std::string* receipt = context.verification.load(std::memory_order_acquire);
  if (receipt != nullptr) return exchange->respond({.body = *receipt});
  exchange->respond(error_response(not_found("unverified: no verification has run", "", "unverified")));
}

}  // namespace plumb

// POST /abort_request, and GET /health_generate: one real token, with a deadline of its own.
#include <chrono>

#include "serve/fields.h"
#include "serve/handlers.h"
#include "serve/strict_json.h"

namespace plumb {

namespace {

constexpr int64_t kProbeMs = 20'000;

}  // namespace

void handle_abort(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  if (!json_body(*exchange)) return;
  const Result<Json> root = parse_strict_json(exchange->request().body);
  if (!root) return exchange->respond(error_response(bad_request("", root.error().what, "invalid_json")));
  if (!root->is_object())
    return exchange->respond(error_response(bad_request("", "the body is no JSON object", "invalid_json")));
  Fields fields(*root, "");
  const std::string rid = fields.text("rid");
  const bool all = fields.boolean("abort_all", false);
  if (rid.empty() && !all)
    fields.fail("rid", "is missing: the x-request-id or the id of the answer", "missing_required_parameter");
  if (fields.error()) return exchange->respond(error_response(*fields.error()));
  const int told = context.running.abort(rid, all);
  if (told == 0 && !all) {
    return exchange->respond(
        error_response(not_found("no request '" + rid.substr(0, 128) + "' is running", "rid", "request_not_found")));
  }
  exchange->respond({.body = "{\"aborted\":" + std::to_string(told) + "}"});
}

void handle_health_generate(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  const ServedModel* model = ready_model(context, *exchange);
  if (model == nullptr) return;
  GenerateRequest request{.request_id = "health-" + exchange->request().request_id,
                          .prompt_ids = {model->services.eos_ids.empty() ? 0 : model->services.eos_ids.front()}};
  request.sampling.temperature = 0;
  request.max_tokens = 1;
  request.priority = INT32_MIN;  // a busy server is not a dead one
  const auto now =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch());
  request.deadline_us = now.count() + kProbeMs * 1000;
  const auto stream = std::make_shared<TokenStream>();
  stream->on_ready = [exchange] { exchange->wake(); };
  const auto unhealthy = [](const Error& error) {
    return unavailable("no token: " + error.to_string(), "unhealthy", 5);
  };
  if (const Status status = model->services.engine->submit(std::move(request), stream); !status) {
    return exchange->respond(error_response(unhealthy(status.error())));
  }
  exchange->on_disconnect = [stream] { stream->cancel(); };
  exchange->on_wake = [weak = std::weak_ptr(exchange), stream, unhealthy] {
    const auto alive = weak.lock();
    std::vector<TokenEvent> events;
    if (alive == nullptr || !stream->take(events)) return;
    const TokenEvent& last = events.back();
    if (last.finish == FinishReason::Length || last.finish == FinishReason::Stop)
      return alive->respond({.body = "{\"state\":\"ready\"}"});
    alive->respond(
        error_response(unhealthy(last.error.value_or(Error{Code::Internal, "the engine ended the request", {}, {}}))));
  };
  exchange->on_wake();  // what came before it was set
}

}  // namespace plumb

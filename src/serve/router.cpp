#include <iterator>
#include <string>

#include "serve/api_error.h"
#include "serve/handlers.h"

namespace plumb {

namespace {

struct Route {
  std::string_view path{}, method{};
  Handler handler = nullptr;
  Access access = Access::Key;
  bool generates = false;  // counts against its client's limit
};

constexpr Route kRoutes[] = {
    {"/v1/chat/completions", "POST", handle_chat, Access::Key, /*generates=*/true},
    {"/v1/completions", "POST", handle_completion, Access::Key, /*generates=*/true},
    {"/v1/messages", "POST", handle_messages, Access::Key, /*generates=*/true},
    {"/v1/messages/count_tokens", "POST", handle_count_tokens},
    {"/v1/responses", "POST", handle_responses, Access::Key, /*generates=*/true},
    {"/generate", "POST", handle_generate, Access::Key, /*generates=*/true},
    {"/abort_request", "POST", handle_abort, Access::Admin},
    {"/health_generate", "GET", handle_health_generate},
    {"/v1/models", "GET", handle_models},
    {"/tokenize", "POST", handle_tokenize},
    {"/detokenize", "POST", handle_detokenize},
    {"/tokenizer_info", "GET", handle_tokenizer_info},
    {"/apply-template", "POST", handle_apply_template},
    {"/health", "GET", handle_health, Access::Open},
    {"/health/live", "GET", handle_live, Access::Open},
    {"/", "GET", handle_web, Access::Open},
    {kWebPrefix, "GET", handle_web, Access::Open},
    {"/metrics", "GET", handle_metrics, Access::Admin},
    {"/model_info", "GET", handle_model_info},
    {"/plan", "GET", handle_plan, Access::Admin},
    {"/verification", "GET", handle_verification, Access::Admin},
};

constexpr std::string_view kModelPrefix = "/v1/models/";

const Route* find_route(std::string_view path) {
  for (const Route& route : kRoutes)
    if (route.path == path) return &route;
  if (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size()) return find_route("/v1/models");
  if (path.starts_with(kWebPrefix)) return find_route(kWebPrefix);
  return nullptr;
}

ApiError refusal(AccessControl::Verdict verdict, const Route* found) {
  if (verdict == AccessControl::Verdict::NotAdmin)
    return {.status = 403,
            .message = std::string(found->path) + " is for the administrator's key",
            .type = "permission_error",
            .code = "admin_key_required"};
  return {.status = 401,
          .message = "a valid key is needed: Authorization: Bearer KEY",
          .type = "authentication_error",
          .code = "invalid_api_key"};
}

// False after answering 429: the client runs as much as it may.
bool admit(AccessControl::Client* client, Exchange& exchange) {
  if (client == nullptr) return true;
  exchange.lowest_priority = client->key.priority;
  exchange.held = AccessControl::enter(*client);
  if (exchange.held) return true;
  exchange.respond(error_response(
      {.status = 429,
       .message = "this key runs its limit of " + std::to_string(client->key.max_requests) + " requests already",
       .type = "rate_limit_error",
       .code = "key_limit",
       .retry_after_s = 1}));
  return false;
}

}  // namespace

std::string_view route_name(std::string_view path) {
  const Route* route = find_route(path);
  return route == nullptr ? "other" : route->path;
}

void route(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const Route* found = find_route(request.path);
  AccessControl::Client* client = nullptr;
  const AccessControl::Verdict verdict =
      context.access.check(request, found == nullptr ? Access::Key : found->access, client);
  if (verdict != AccessControl::Verdict::Granted) return exchange->respond(error_response(refusal(verdict, found)));
  if (client != nullptr) exchange->client = client->key.name;
  if (found == nullptr) {
    std::string message = request.path.substr(0, 200) + " is no endpoint of this server";
    if (request.path == "/v1/embeddings") message = "embeddings are not offered by this server";
    return exchange->respond(error_response(not_found(std::move(message), "", "unknown_url")));
  }
  const bool fits = request.method == found->method || (request.method == "HEAD" && found->method == "GET");
  if (!fits) {
    HttpResponse response = error_response(
        {.status = 405,
         .message = std::string(found->path) + " takes " + std::string(found->method) + ", not " + request.method,
         .code = "method_not_allowed"});
    response.headers.emplace_back("Allow", found->method == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
    return exchange->respond(std::move(response));
  }
  if (!found->generates || admit(client, *exchange)) found->handler(context, exchange);
}

}  // namespace plumb

#include <iterator>
#include <string>

#include "serve/api_error.h"
#include "serve/handlers.h"

namespace plumb {

namespace {

struct Route {
  std::string_view path{}, method{};
  Handler handler = nullptr;
  bool open = false;  // needs no key
};

constexpr Route kRoutes[] = {
    {"/v1/chat/completions", "POST", handle_chat},
    {"/v1/completions", "POST", handle_completion},
    {"/v1/messages", "POST", handle_messages},
    {"/v1/messages/count_tokens", "POST", handle_count_tokens},
    {"/v1/responses", "POST", handle_responses},
    {"/generate", "POST", handle_generate},
    {"/abort_request", "POST", handle_abort},
    {"/health_generate", "GET", handle_health_generate},
    {"/v1/models", "GET", handle_models},
    {"/tokenize", "POST", handle_tokenize},
    {"/detokenize", "POST", handle_detokenize},
    {"/apply-template", "POST", handle_apply_template},
    {"/health", "GET", handle_health, /*open=*/true},
    {"/health/live", "GET", handle_live, /*open=*/true},
    {"/metrics", "GET", handle_metrics},
    {"/model_info", "GET", handle_model_info},
    {"/plan", "GET", handle_plan},
    {"/verification", "GET", handle_verification},
};

constexpr std::string_view kModelPrefix = "/v1/models/";

const Route* find_route(std::string_view path) {
  for (const Route& route : kRoutes)
    if (route.path == path) return &route;
  if (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size()) return find_route("/v1/models");
  return nullptr;
}

// Takes the same time wherever the texts differ.
bool same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size() && !b.empty(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i % b.size()]);
  }
  return difference == 0;
}

bool key_ok(const ServeContext& context, const HttpRequest& request) {
  const std::string& key = context.options.api_key;
  if (key.empty()) return true;
  std::string_view given = request.header("authorization");
  static constexpr std::string_view kScheme = "bearer ";
  if (given.size() < kScheme.size()) return false;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if ((given[i] | 0x20) != (kScheme[i] | 0x20)) return false;
  }
  given.remove_prefix(kScheme.size());
  return same_secret(given, key);
}

}  // namespace

std::string_view route_name(std::string_view path) {
  const Route* route = find_route(path);
  return route == nullptr ? "other" : route->path;
}

void route(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  const Route* found = find_route(request.path);
  if ((found == nullptr || !found->open) && !key_ok(context, request)) {
    return exchange->respond(error_response({.status = 401,
                                             .message = "a valid key is needed: Authorization: Bearer KEY",
                                             .type = "authentication_error",
                                             .code = "invalid_api_key"}));
  }
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
  found->handler(context, exchange);
}

}  // namespace plumb

#include "serve/api_error.h"

#include <nlohmann/json.hpp>

namespace plumb {

namespace {

nlohmann::ordered_json or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

}  // namespace

ApiError bad_request(std::string param, std::string message, std::string code) {
  return {.status = 400, .message = std::move(message), .param = std::move(param), .code = std::move(code)};
}

ApiError not_found(std::string message, std::string param, std::string code) {
  return {.status = 404, .message = std::move(message), .param = std::move(param), .code = std::move(code)};
}

ApiError unavailable(std::string message, std::string code, int retry_after_s) {
  return {.status = 503,
          .message = std::move(message),
          .type = "server_error",
          .code = std::move(code),
          .retry_after_s = retry_after_s};
}

std::string error_json(const ApiError& error) {
  nlohmann::ordered_json body = {
      {"message", error.message}, {"type", error.type}, {"param", or_null(error.param)}, {"code", or_null(error.code)}};
  if (error.incident) {
    body["incident_id"] = error.incident->id;
    body["provenance"] = to_json(*error.incident);
  }
  return nlohmann::ordered_json{{"error", std::move(body)}}.dump(-1, ' ', false,
                                                                 nlohmann::ordered_json::error_handler_t::replace);
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = error_json(error)};
  if (error.retry_after_s > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  if (error.should_retry) response.headers.emplace_back("x-should-retry", *error.should_retry ? "true" : "false");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse transport_error(int status, std::string_view message) {
  ApiError error{.status = status, .message = std::string(message)};
  if (status >= 500) error.type = "server_error";
  if (status == 503) error.retry_after_s = 1;
  if (status == 408) error.should_retry = false;
  return error_response(error);
}

ApiError engine_error(const Error& error, std::shared_ptr<const Incident> incident) {
  ApiError result{.status = 500, .message = error.what, .type = "server_error", .code = "internal_error"};
  if (!error.why.empty()) result.message += ": " + error.why;
  if (incident) {
    result.type = "numerical_fault";
    result.code =
        incident->kind == FaultKind::Drift ? "drift_detected" : std::string(to_string(incident->kind)) + "_detected";
    result.incident = std::move(incident);
    result.should_retry = false;
  } else if (error.code == Code::Usage || error.code == Code::Unsupported) {
    result.status = 400;
    result.type = "invalid_request_error";
    result.code = "invalid_value";
  } else if (error.code == Code::Environment || error.code == Code::Cancelled || error.code == Code::Peer) {
    result.status = 503;
    result.code = "unavailable";
    result.retry_after_s = 1;
  }
  return result;
}

}  // namespace plumb

// An error as the API shows it: status, and the body clients unwrap.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "guard/incident.h"
#include "serve/http.h"

namespace plumb {

struct ApiError {
  int status = 400;
  std::string message{};
  std::string type = "invalid_request_error";
  std::string param{};  // "" is sent as null, as is an empty code
  std::string code{};
  std::shared_ptr<const Incident> incident{};  // numerical faults
  int retry_after_s = 0;                       // 0: no header
  std::optional<bool> should_retry{};          // x-should-retry: decides outright in the client
};

// 400 for a field that is ill-typed, out of range, or not offered. `param` is a JSON path such as messages[2].content.
ApiError bad_request(std::string param, std::string message, std::string code = "invalid_value");
ApiError not_found(std::string message, std::string param, std::string code);
ApiError unavailable(std::string message, std::string code, int retry_after_s);

// {"error":{...}} on one line.
std::string error_json(const ApiError& error);
HttpResponse error_response(const ApiError& error);
// How the HTTP layer's own refusals look.
HttpResponse transport_error(int status, std::string_view message);

// What the engine reports inside a stream or at submit.
ApiError engine_error(const Error& error, std::shared_ptr<const Incident> incident = nullptr);

}  // namespace plumb

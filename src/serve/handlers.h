// One function an endpoint. Each answers its exchange, now or later.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "serve/context.h"
#include "serve/http.h"

namespace plumb {

// The model when requests can be served, else nullptr after answering 503.
const ServedModel* ready_model(ServeContext& context, Exchange& exchange);

// Runs `work` on the pool and the function it returns on the exchange's I/O thread; answers 429 when the pool is full.
void run_in_pool(ServeContext& context, const std::shared_ptr<Exchange>& exchange,
                 std::function<std::function<void()>()> work);

// 400 unless the body claims to be JSON (or claims nothing).
bool json_body(Exchange& exchange);

// The served name that `asked` means ("" is the main one), or 404.
std::variant<std::string, ApiError> served_model(const ServeContext& context, const std::string& asked);

using Handler = void (*)(ServeContext&, const std::shared_ptr<Exchange>&);
inline constexpr std::string_view kWebPrefix = "/web/";
void handle_web(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_chat(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_completion(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_messages(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_count_tokens(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_responses(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_generate(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_abort(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_health_generate(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_tokenize(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_tokenizer_info(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_detokenize(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_apply_template(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_live(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_health(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_metrics(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_models(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_model_info(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_plan(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_verification(ServeContext& context, const std::shared_ptr<Exchange>& exchange);

// Finds the endpoint, checks key and method, and calls it.
void route(ServeContext& context, const std::shared_ptr<Exchange>& exchange);
// The route's own name for metrics: never the caller's text.
std::string_view route_name(std::string_view path);

}  // namespace plumb

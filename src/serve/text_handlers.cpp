// POST /tokenize, /detokenize and /apply-template: the text side alone, for support and for clients that count.
#include <nlohmann/json.hpp>

#include "serve/fields.h"
#include "serve/handlers.h"
#include "serve/other_requests.h"
#include "serve/prompt.h"
#include "serve/strict_json.h"

namespace plumb {

namespace {

using Answer = std::variant<std::string, ApiError>;  // the body of a 200, or an error

Answer tokens_answer(const ServedModel& model, const std::vector<int32_t>& ids) {
  std::string body = "{\"count\":" + std::to_string(ids.size()) +
                     ",\"max_model_len\":" + std::to_string(model.services.engine->max_context()) + ",\"tokens\":";
  append_ids(body, ids);
  return body + '}';
}

std::variant<RenderedPrompt, ApiError> rendered_chat(const ServeContext& context, const ServedModel& model,
                                                     const std::string& body) {
  ParsedChat parsed = parse_template_request(body, model.limits);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  return render_chat(context, model, std::get<ChatRequest>(parsed));
}

Answer tokenize(const ServeContext& context, const ServedModel& model, const std::string& body) {
  const Result<Json> root = parse_strict_json(body);
  if (!root) return bad_request("", root.error().what, "invalid_json");
  if (!root->is_object()) return bad_request("", "the body is no JSON object", "invalid_json");
  Fields fields(*root, "");
  const bool chat = fields.find("messages") != nullptr;
  if (chat == (fields.find("prompt") != nullptr)) {
    return bad_request("prompt", "give either 'prompt' or 'messages'", "missing_required_parameter");
  }
  if (chat) {
    std::variant<RenderedPrompt, ApiError> rendered = rendered_chat(context, model, body);
    if (const auto* error = std::get_if<ApiError>(&rendered)) return *error;
    return tokens_answer(model, std::get<RenderedPrompt>(rendered).ids);
  }
  const std::string text = fields.text("prompt");
  const bool special = fields.boolean("add_special_tokens", true);
  if (fields.error()) return *fields.error();
  const Result<std::vector<int32_t>> ids = model.services.tokenizer->encode(text, {.add_special_tokens = special});
  if (!ids) return bad_request("prompt", ids.error().to_string());
  return tokens_answer(model, *ids);
}

Answer detokenize(const ServeContext&, const ServedModel& model, const std::string& body) {
  const Result<Json> root = parse_strict_json(body);
  if (!root) return bad_request("", root.error().what, "invalid_json");
  const bool usable = root->is_object() && root->contains("tokens") && (*root)["tokens"].is_array();
  if (!usable) return bad_request("tokens", "'tokens' is missing or no list", "missing_required_parameter");
  std::vector<int32_t> ids;
  for (const Json& item : (*root)["tokens"]) {
    const bool valid = item.is_number_integer() && item >= 0 && item < model.limits.vocab_size;
    if (!valid) {
      return bad_request("tokens", "'tokens' holds " + shown(item) + ", expected ids from 0 to " +
                                       std::to_string(model.limits.vocab_size - 1));
    }
    ids.push_back(item.get<int32_t>());
  }
  return printed({{"prompt", model.services.tokenizer->decode(ids, /*skip_special=*/false)}});
}

// Anthropic's count of a prompt. Its form needs max_tokens only where something is generated.
Answer count_tokens(const ServeContext& context, const ServedModel& model, const std::string& body) {
  Result<Json> root = parse_strict_json(body);
  if (!root) return bad_request("", root.error().what, "invalid_json");
  if (root->is_object() && !root->contains("max_tokens")) (*root)["max_tokens"] = 1;
  const Equivalent chat = chat_of_messages(printed(*root));
  if (const auto* error = std::get_if<ApiError>(&chat)) return *error;
  std::variant<RenderedPrompt, ApiError> rendered = rendered_chat(context, model, std::get<EquivalentBody>(chat).body);
  if (const auto* error = std::get_if<ApiError>(&rendered)) return *error;
  return "{\"input_tokens\":" + std::to_string(std::get<RenderedPrompt>(rendered).ids.size()) + '}';
}

Answer apply_template(const ServeContext& context, const ServedModel& model, const std::string& body) {
  std::variant<RenderedPrompt, ApiError> rendered = rendered_chat(context, model, body);
  if (const auto* error = std::get_if<ApiError>(&rendered)) return *error;
  return printed({{"prompt", std::get<RenderedPrompt>(rendered).text}});
}

void answer(ServeContext& context, const std::shared_ptr<Exchange>& exchange,
            Answer (*work)(const ServeContext&, const ServedModel&, const std::string&)) {
  const ServedModel* model = ready_model(context, *exchange);
  if (model == nullptr || !json_body(*exchange)) return;
  run_in_pool(context, exchange, [&context, model, exchange, work]() -> std::function<void()> {
    const auto result = std::make_shared<Answer>(work(context, *model, exchange->request().body));
    return [exchange, result] {
      if (const auto* error = std::get_if<ApiError>(result.get())) return exchange->respond(error_response(*error));
      exchange->respond({.body = std::get<std::string>(std::move(*result))});
    };
  });
}

}  // namespace

// What clients that have no tokenizer of their own want to know beside /tokenize and /detokenize.
void handle_tokenizer_info(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  const ServedModel* model = ready_model(context, *exchange);
  if (model == nullptr) return;
  const Tokenizer& tokenizer = *model->services.tokenizer;
  std::optional<int32_t> eos = tokenizer.eos_id();
  if (!eos && !model->services.eos_ids.empty()) eos = model->services.eos_ids.front();
  const auto name = [&](std::optional<int32_t> id) {
    return id ? Json(std::string(tokenizer.token_bytes(*id))) : Json(nullptr);
  };
  exchange->respond({.body = printed({{"eos_token", name(eos)},
                                      {"bos_token", name(tokenizer.bos_id())},
                                      {"pad_token", name(eos)},
                                      {"vocab_size", model->limits.vocab_size},
                                      {"model_max_length", model->services.engine->max_context()}})});
}

void handle_tokenize(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer(context, exchange, tokenize);
}
void handle_detokenize(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer(context, exchange, detokenize);
}
void handle_count_tokens(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer(context, exchange, count_tokens);
}
void handle_apply_template(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  answer(context, exchange, apply_template);
}

}  // namespace plumb

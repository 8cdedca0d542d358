// POST /v1/chat/completions, /v1/completions, /v1/messages, /v1/responses and /generate.
#include <algorithm>

#include "serve/generation.h"
#include "serve/handlers.h"
#include "serve/other_requests.h"
#include "serve/prompt.h"

namespace plumb {

namespace {

using Prepared = std::variant<GenerationRequest, ApiError>;

std::string joined(const std::string& field, const std::string& path) {
  return path.empty() || path == "the schema" ? field : field + "." + path;
}

// "tool NAME: path: why" or "path: why", where the error is of a schema: names the field and leaves the reason.
std::string take_field(const ConstraintField& constraint, const ToolRequest& tools, std::string& message) {
  const auto take = [&message] {
    const size_t colon = message.find(": ");
    if (colon == std::string::npos) return std::string();
    std::string path = message.substr(0, colon);
    message.erase(0, colon + 2);
    return path;
  };
  for (size_t i = 0; i < tools.specs.size(); ++i) {
    if (!message.starts_with("tool " + tools.specs[i].name + ": ")) continue;
    (void)take();
    return joined("tools[" + std::to_string(i) + "].function.parameters", take());
  }
  if (constraint.field.empty()) return "tools";
  const bool schema = constraint.shape.kind == grammar::ContentShape::Kind::JsonSchema;
  return schema ? joined(constraint.field, take()) : constraint.field;
}

// Compiles what the fields ask for. Errors inside a schema name the keyword's whole path.
std::optional<ApiError> constrain(const ServedModel& model, ReasoningStart reasoning, const ToolRequest& tools,
                                  GenerationRequest& request) {
  using Kind = grammar::ContentShape::Kind;
  ConstraintField& constraint = request.common.constraint;
  const bool required = tools.choice == ToolChoice::Required || tools.choice == ToolChoice::Named;
  const bool free = constraint.shape.kind == Kind::Free && !required;
  const bool strict = tools.callable() && std::ranges::any_of(tools.specs, &ToolSpec::strict);
  if (free && !strict) return std::nullopt;
  grammar::OutputShape shape{.content = constraint.shape,
                             .calls_required = required,
                             .calls_amid_text = free,
                             .one_call = !tools.parallel || tools.choice == ToolChoice::Named};
  for (const ToolSpec& tool : tools.specs) {
    const bool offered = tools.callable() && (tools.choice != ToolChoice::Named || tool.name == tools.named);
    if (offered) shape.tools.push_back({tool.name, tool.parameters_json, free && !tool.strict});
  }
  if (reasoning == ReasoningStart::InReasoning) shape.reasoning = grammar::Reasoning::Open;
  if (reasoning == ReasoningStart::MayBegin) shape.reasoning = grammar::Reasoning::MayBegin;
  Result<std::shared_ptr<grammar::Grammar>> made = model.grammars->get(shape);
  if (made) {
    request.grammar = *std::move(made);
    return std::nullopt;
  }
  const Error& error = made.error();
  std::string message = error.what;
  const std::string param = take_field(constraint, tools, message);
  if (!error.why.empty()) message += ": " + error.why;
  return bad_request(param, "'" + param + "' " + message);
}

Prepared chat_of(const ServeContext& context, const ServedModel& model, std::string_view body, Endpoint endpoint) {
  ParsedChat parsed = parse_chat_request(body, model.limits);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  auto& chat = std::get<ChatRequest>(parsed);
  std::variant<std::string, ApiError> name = served_model(context, chat.common.model);
  if (const auto* error = std::get_if<ApiError>(&name)) return *error;
  std::variant<RenderedPrompt, ApiError> rendered = render_chat(context, model, chat);
  if (const auto* error = std::get_if<ApiError>(&rendered)) return *error;
  auto& prompt = std::get<RenderedPrompt>(rendered);
  GenerationRequest request;
  request.endpoint = endpoint;
  request.common = std::move(chat.common);
  request.model = std::get<std::string>(std::move(name));
  request.separate_reasoning = chat.separate_reasoning;
  request.stop_in_reasoning = chat.stop_in_reasoning;
  request.one_call = !chat.tools.parallel;
  if (chat.tools.callable()) request.tools = std::make_shared<const ToolSchemas>(chat.tools.specs);
  // No call comes where none is wanted, whatever the model has learnt.
  if (const int32_t call = model.tags[MarkupTag::Call]; chat.tools.choice == ToolChoice::None && call >= 0) {
    request.common.sampling.logit_bias.emplace_back(call, -1e30f);
  }
  request.prompts.push_back(
      {.ids = std::move(prompt.ids), .text = std::move(prompt.text), .reasoning = prompt.reasoning});
  if (std::optional<ApiError> error = constrain(model, request.prompts[0].reasoning, chat.tools, request))
    return *std::move(error);
  return request;
}

Prepared prepare_chat(const ServeContext& context, const ServedModel& model, const HttpRequest& http) {
  return chat_of(context, model, http.body, Endpoint::Chat);
}

Prepared prepare_messages(const ServeContext& context, const ServedModel& model, const HttpRequest& http) {
  const Equivalent chat = chat_of_messages(http.body);
  if (const auto* error = std::get_if<ApiError>(&chat)) return *error;
  return chat_of(context, model, std::get<EquivalentBody>(chat).body, Endpoint::Messages);
}

Prepared prepare_responses(const ServeContext& context, const ServedModel& model, const HttpRequest& http) {
  Equivalent chat = chat_of_responses(http.body);
  if (const auto* error = std::get_if<ApiError>(&chat)) return *error;
  Prepared prepared = chat_of(context, model, std::get<EquivalentBody>(chat).body, Endpoint::Responses);
  if (auto* request = std::get_if<GenerationRequest>(&prepared))
    request->echo_json = std::get<EquivalentBody>(std::move(chat)).echo_json;
  return prepared;
}

std::variant<PromptInput, ApiError> prompt_input(const ServedModel& model, Prompt&& prompt, bool echo,
                                                 bool skip_special) {
  const Tokenizer& tokenizer = *model.services.tokenizer;
  PromptInput input;
  if (auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
    input.ids = std::move(*ids);
    if (echo) input.text = tokenizer.decode(input.ids, skip_special);
    return input;
  }
  input.text = std::get<std::string>(std::move(prompt));
  Result<std::vector<int32_t>> ids = tokenizer.encode(input.text, {.add_special_tokens = true});
  if (!ids) return bad_request("prompt", ids.error().to_string());
  input.ids = *std::move(ids);
  return input;
}

Prepared completion_of(const ServeContext& context, const ServedModel& model, std::string_view body) {
  ParsedCompletion parsed = parse_completion_request(body, model.limits);
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  auto& completion = std::get<CompletionRequest>(parsed);
  std::variant<std::string, ApiError> name = served_model(context, completion.common.model);
  if (const auto* error = std::get_if<ApiError>(&name)) return *error;
  GenerationRequest request;
  request.endpoint = Endpoint::Completion;
  request.model = std::get<std::string>(std::move(name));
  request.echo = completion.echo;
  request.prompt_only = completion.prompt_only;
  for (Prompt& prompt : completion.prompts) {
    std::variant<PromptInput, ApiError> input =
        prompt_input(model, std::move(prompt), completion.echo, completion.common.skip_special_tokens);
    if (const auto* error = std::get_if<ApiError>(&input)) return *error;
    request.prompts.push_back(std::get<PromptInput>(std::move(input)));
  }
  request.common = std::move(completion.common);
  if (std::optional<ApiError> error = constrain(model, ReasoningStart::Off, {}, request)) return *std::move(error);
  return request;
}

Prepared prepare_completion(const ServeContext& context, const ServedModel& model, const HttpRequest& http) {
  return completion_of(context, model, http.body);
}

Prepared prepare_generate(const ServeContext& context, const ServedModel& model, const HttpRequest& http) {
  Equivalent completion = completion_of_generate(http.body);
  if (const auto* error = std::get_if<ApiError>(&completion)) return *error;
  Prepared prepared = completion_of(context, model, std::get<EquivalentBody>(completion).body);
  if (auto* request = std::get_if<GenerationRequest>(&prepared)) {
    request->endpoint = Endpoint::Generate;
    request->rid = std::get<EquivalentBody>(std::move(completion)).rid;
  }
  return prepared;
}

using Prepare = Prepared (*)(const ServeContext&, const ServedModel&, const HttpRequest&);

void generate(ServeContext& context, const std::shared_ptr<Exchange>& exchange, Endpoint endpoint, Prepare prepare) {
  const ServedModel* model = ready_model(context, *exchange);
  if (model == nullptr || !json_body(*exchange)) return;
  run_in_pool(context, exchange, [&context, model, exchange, endpoint, prepare]() -> std::function<void()> {
    const auto prepared = std::make_shared<Prepared>(prepare(context, *model, exchange->request()));
    return [&context, model, exchange, endpoint, prepared] {
      if (const auto* error = std::get_if<ApiError>(prepared.get()))
        return exchange->respond(refusal(endpoint, *error));
      auto& request = std::get<GenerationRequest>(*prepared);
      std::make_shared<Generation>(context, *model, exchange, std::move(request))->start();
    };
  });
}

}  // namespace

void handle_chat(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  generate(context, exchange, Endpoint::Chat, prepare_chat);
}

void handle_completion(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  generate(context, exchange, Endpoint::Completion, prepare_completion);
}

void handle_messages(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  generate(context, exchange, Endpoint::Messages, prepare_messages);
}

void handle_responses(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  generate(context, exchange, Endpoint::Responses, prepare_responses);
}

void handle_generate(ServeContext& context, const std::shared_ptr<Exchange>& exchange) {
  if (context.options.generate_endpoint) return generate(context, exchange, Endpoint::Generate, prepare_generate);
  exchange->respond(
      error_response(not_found("/generate is off; start the server with --generate-endpoint", "", "unknown_url")));
}

const ServedModel* ready_model(ServeContext& context, Exchange& exchange) {
  const ServedModel* model = context.model.load(std::memory_order_acquire);
  const ServerState state = context.state.load(std::memory_order_acquire);
  if (model != nullptr && state == ServerState::Ready) return model;
  const std::string name(state_name(state));
  exchange.respond(error_response(unavailable("the server is not ready: " + name, name, 5)));
  return nullptr;
}

void run_in_pool(ServeContext& context, const std::shared_ptr<Exchange>& exchange,
                 std::function<std::function<void()>()> work) {
  const bool taken = context.pool->try_submit([exchange, job = std::move(work)] { exchange->post(job()); });
  if (taken) return;
  exchange->respond(error_response({.status = 429,
                                    .message = "too many requests wait to be read",
                                    .type = "rate_limit_error",
                                    .code = "queue_full",
                                    .retry_after_s = 1}));
}

bool json_body(Exchange& exchange) {
  std::string_view type = exchange.request().header("content-type");
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ')) type.remove_suffix(1);
  std::string lower(type);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
  if (lower.empty() || lower == "application/json" || lower.ends_with("+json")) return true;
  exchange.respond(error_response(bad_request(
      "", "the content type is " + lower.substr(0, 80) + ", expected application/json", "unsupported_content_type")));
  return false;
}

std::variant<std::string, ApiError> served_model(const ServeContext& context, const std::string& asked) {
  const std::vector<std::string>& names = context.options.served_names;
  if (asked.empty()) return names.front();
  if (context.options.accept_any_model || std::find(names.begin(), names.end(), asked) != names.end()) return asked;
  return not_found("the model '" + asked.substr(0, 200) + "' is not served here; '" + names.front() + "' is", "model",
                   "model_not_found");
}

}  // namespace plumb

// SGLang's /generate.
#include "serve/fields.h"
#include "serve/other_requests.h"
#include "serve/strict_json.h"

namespace plumb {

namespace {

// Names of sampling_params and of the completion's fields.
constexpr std::pair<const char*, const char*> kParameters[] = {{"max_new_tokens", "max_tokens"},
                                                               {"min_new_tokens", "min_tokens"},
                                                               {"temperature", "temperature"},
                                                               {"top_p", "top_p"},
                                                               {"top_k", "top_k"},
                                                               {"min_p", "min_p"},
                                                               {"frequency_penalty", "frequency_penalty"},
                                                               {"presence_penalty", "presence_penalty"},
                                                               {"repetition_penalty", "repetition_penalty"},
                                                               {"stop", "stop"},
                                                               {"stop_token_ids", "stop_token_ids"},
                                                               {"ignore_eos", "ignore_eos"},
                                                               {"skip_special_tokens", "skip_special_tokens"},
                                                               {"n", "n"},
                                                               {"json_schema", "json_schema"},
                                                               {"regex", "regex"},
                                                               {"ebnf", "ebnf"},
                                                               {"logit_bias", "logit_bias"}};

}  // namespace

Equivalent completion_of_generate(std::string_view body) {
  const Result<Json> root = parse_strict_json(body);
  if (!root) return bad_request("", root.error().what, "invalid_json");
  if (!root->is_object()) return bad_request("", "the body is no JSON object", "invalid_json");
  Fields fields(*root, "");
  Json out = {{"return_token_ids", true}};
  const Json* text = fields.find("text");
  const Json* ids = fields.find("input_ids");
  if ((text == nullptr) == (ids == nullptr))
    return bad_request("text", "give either 'text' or 'input_ids'", "missing_required_parameter");
  out["prompt"] = text != nullptr ? *text : *ids;
  if (const Json* stream = fields.find("stream"); stream != nullptr) out["stream"] = *stream;
  out["max_tokens"] = 128;  // as there
  if (const Json* given = fields.find("sampling_params"); given != nullptr) {
    if (!given->is_object())
      return bad_request("sampling_params", "'sampling_params' is " + shown(*given) + ", expected an object",
                         "invalid_type");
    Fields parameters(*given, "sampling_params");
    for (const auto& [name, meaning] : kParameters)
      if (const Json* value = parameters.find(name); value != nullptr) out[meaning] = *value;
    parameters.neutral("spaces_between_special_tokens");
    if (const std::vector<std::string> unknown = parameters.unknown(); !unknown.empty()) {
      return bad_request("sampling_params." + unknown.front().substr(0, 80),
                         "'sampling_params." + unknown.front().substr(0, 80) + "' is not offered",
                         "unsupported_parameter");
    }
  }
  if (fields.boolean("return_logprob", false)) {
    out["logprobs"] = fields.integer("top_logprobs_num", 0, 0, 20);
    out["echo"] = fields.integer("logprob_start_len", -1, -1, 0) == 0;  // the prompt's, or none of it
  }
  for (const char* name : {"rid", "log_metrics"}) fields.neutral(name);
  for (const char* name : {"image_data", "lora_path", "input_embeds", "return_hidden_states"})
    fields.not_offered(name, nullptr, "this is not offered");
  const std::string rid = fields.text("rid");
  for (const std::string& name : fields.unknown()) out[name] = (*root)[name];
  if (fields.error()) return *fields.error();
  return EquivalentBody{.body = out.dump(-1, ' ', false, Json::error_handler_t::replace), .rid = rid};
}

}  // namespace plumb

#include "serve/openai_request.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "serve/constraint_fields.h"
#include "serve/fields.h"
#include "serve/request_messages.h"
#include "serve/strict_json.h"
#include "serve/tool_fields.h"

namespace plumb {

namespace {

constexpr int kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr int kMaxTopLogprobs = 20;
constexpr int64_t kInt32Max = INT32_MAX;
constexpr std::string_view kTextOnly = "this model reads and writes text only";

// Any 64-bit integer: -1 and 2^64-1 are the same bits and the same seed.
void read_seed(Fields& fields, CommonFields& common) {
  const Json* value = fields.find("seed");
  if (value == nullptr) return;
  if (!value->is_number_integer()) {
    fields.fail("seed", "is " + shown(*value) + ", expected an integer of at most 64 bits");
    return;
  }
  common.has_seed = true;
  common.sampling.seed =
      value->is_number_unsigned() ? value->get<uint64_t>() : static_cast<uint64_t>(value->get<int64_t>());
}

// "123" -> 123; -1 when it is no token id of this vocabulary.
int token_id(const std::string& text, int vocab_size) {
  if (text.empty() || text.size() > 9) return -1;
  int id = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return -1;
    id = id * 10 + (c - '0');
  }
  return id < vocab_size ? id : -1;
}

void read_logit_bias(Fields& fields, CommonFields& common, const RequestLimits& limits) {
  const Json* value = fields.find("logit_bias");
  if (value == nullptr) return;
  if (!value->is_object()) {
    fields.fail("logit_bias", "is " + shown(*value) + ", expected an object of token ids", "invalid_type");
    return;
  }
  for (const auto& [key, bias] : value->items()) {
    const int id = token_id(key, limits.vocab_size);
    if (id < 0) {
      return fields.fail("logit_bias", "has the key \"" + key.substr(0, 40) + "\", expected token ids from 0 to " +
                                           std::to_string(limits.vocab_size - 1));
    }
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100.0)) {
      return fields.fail("logit_bias",
                         "has " + shown(bias) + " for token " + key + ", expected a number from -100 to 100");
    }
    common.sampling.logit_bias.emplace_back(id, bias.get<float>());
  }
  std::sort(common.sampling.logit_bias.begin(), common.sampling.logit_bias.end());
  const auto same_id = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto twice = std::adjacent_find(common.sampling.logit_bias.begin(), common.sampling.logit_bias.end(), same_id);
  if (twice != common.sampling.logit_bias.end()) {
    fields.fail("logit_bias", "names token " + std::to_string(twice->first) + " twice");
  }
}

void read_stop(Fields& fields, CommonFields& common) {
  const Json* value = fields.find("stop");
  if (value == nullptr) return;
  if (value->is_string()) common.stop.push_back(value->get<std::string>());
  if (!value->is_string() && !value->is_array()) {
    return fields.fail("stop", "is " + shown(*value) + ", expected a string or a list of strings", "invalid_type");
  }
  if (value->is_array()) {
    if (value->size() > kMaxStops) {
      return fields.fail("stop", "has " + std::to_string(value->size()) + " strings, at most 16 work");
    }
    for (const Json& item : *value) {
      if (!item.is_string()) return fields.fail("stop", "holds " + shown(item) + ", expected strings", "invalid_type");
      common.stop.push_back(item.get<std::string>());
    }
  }
  for (const std::string& stop : common.stop) {
    if (stop.empty()) return fields.fail("stop", "holds an empty string, which would end every text at once");
    if (stop.size() > kMaxStopBytes) return fields.fail("stop", "holds a string of over 1024 bytes");
  }
}

void read_stop_ids(Fields& fields, CommonFields& common, const RequestLimits& limits) {
  const Json* value = fields.find("stop_token_ids");
  if (value == nullptr) return;
  if (!value->is_array()) {
    return fields.fail("stop_token_ids", "is " + shown(*value) + ", expected a list of token ids", "invalid_type");
  }
  if (value->size() > 1024) return fields.fail("stop_token_ids", "has over 1024 ids");
  for (const Json& item : *value) {
    const bool valid = item.is_number_integer() && item >= 0 && item < limits.vocab_size;
    if (!valid) {
      return fields.fail("stop_token_ids",
                         "holds " + shown(item) + ", expected ids from 0 to " + std::to_string(limits.vocab_size - 1));
    }
    common.stop_token_ids.push_back(item.get<int32_t>());
  }
}

void read_sampling(Fields& fields, CommonFields& common, const RequestLimits& limits) {
  SamplingParams& s = common.sampling;
  s.temperature = static_cast<float>(fields.number("temperature", limits.default_temperature, {0, 2}));
  s.top_p = static_cast<float>(fields.number("top_p", limits.default_top_p, {0, 1}));
  if (s.top_p <= 0.0f) s.top_p = FLT_MIN;  // the smallest nucleus: the best token alone
  const int64_t top_k = fields.integer("top_k", limits.default_top_k, -1, kInt32Max);
  s.top_k = top_k <= 0 || top_k >= limits.vocab_size ? 0 : static_cast<int>(top_k);
  s.min_p = static_cast<float>(fields.number("min_p", 0, {0, 1}));
  s.presence_penalty = static_cast<float>(fields.number("presence_penalty", 0, {-2, 2}));
  s.frequency_penalty = static_cast<float>(fields.number("frequency_penalty", 0, {-2, 2}));
  s.repetition_penalty = static_cast<float>(fields.number("repetition_penalty", 1, {0, 10, /*lowest_excluded=*/true}));
  if (s.repetition_penalty < FLT_MIN) fields.fail("repetition_penalty", "is too close to 0");
  read_logit_bias(fields, common, limits);
  read_seed(fields, common);
}

void read_stream_options(Fields& fields, CommonFields& common) {
  common.stream = fields.boolean("stream", false);
  const Json* value = fields.find("stream_options");
  if (value == nullptr) return;
  if (!value->is_object())
    return fields.fail("stream_options", "is " + shown(*value) + ", expected an object", "invalid_type");
  if (!common.stream) return fields.fail("stream_options", "is allowed only with \"stream\": true");
  Fields options(*value, "stream_options");
  common.include_usage = options.boolean("include_usage", false);
  options.neutral("include_obfuscation");
  options.not_offered("continuous_usage_stats", false, "usage comes once, at the end");
  if (options.error()) fields.fail(*options.error());
}

// Fields that are known and have no effect, or whose non-default values this server must refuse rather than ignore.
void read_other_fields(Fields& fields) {
  for (const char* name :
       {"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "verbosity"}) {
    fields.neutral(name);
  }
  (void)fields.boolean("spaces_between_special_tokens", true);  // byte-level tokens: there are none to begin with
  fields.not_offered("store", false, "answers are not stored here");
  const Json* tier = fields.find("service_tier");
  if (tier != nullptr && *tier != "auto" && *tier != "default") {
    fields.fail("service_tier", "is " + shown(*tier) + ", only \"auto\" and \"default\" work", "unsupported_parameter");
  }
  fields.not_offered("prompt_logprobs", nullptr, "use /v1/completions with echo and logprobs");
  fields.not_offered("use_beam_search", false, "beam search is not offered");
  fields.not_offered("length_penalty", 1.0, "beam search is not offered");
  fields.not_offered("lora_path", nullptr, "adapters are not offered");
}

void read_common(Fields& fields, CommonFields& common, const RequestLimits& limits) {
  common.model = fields.text("model");
  read_sampling(fields, common, limits);
  common.n = static_cast<int>(fields.integer("n", 1, 1, 128));
  read_stop(fields, common);
  read_stop_ids(fields, common, limits);
  common.min_tokens = static_cast<int>(fields.integer("min_tokens", 0, 0, kInt32Max));
  common.ignore_eos = fields.boolean("ignore_eos", false);
  common.include_stop_str_in_output = fields.boolean("include_stop_str_in_output", false);
  common.skip_special_tokens = fields.boolean("skip_special_tokens", true);
  common.return_token_ids = fields.boolean("return_token_ids", false);
  common.priority = static_cast<int>(fields.integer("priority", 0, INT32_MIN, kInt32Max));
  common.cache_salt = fields.text("cache_salt");
  if (common.cache_salt.size() > 256) fields.fail("cache_salt", "is over 256 bytes");
  read_constraint(fields, common.constraint);
  read_stream_options(fields, common);
  read_other_fields(fields);
}

void read_max_tokens(Fields& fields, CommonFields& common, std::string_view name, int64_t lowest) {
  if (fields.find(name) == nullptr) return;
  common.max_tokens = fields.integer(name, 1, lowest, kInt32Max);
}

void check_min_tokens(Fields& fields, const CommonFields& common) {
  if (common.max_tokens && common.min_tokens > *common.max_tokens) {
    fields.fail("min_tokens", "is " + std::to_string(common.min_tokens) + ", more than the " +
                                  std::to_string(*common.max_tokens) + " of max_tokens");
  }
}

void finish(Fields& fields, CommonFields& common, const RequestLimits& limits) {
  common.ignored_fields = fields.unknown();
  if (limits.strict_fields && !common.ignored_fields.empty()) {
    const std::string name = common.ignored_fields.front().substr(0, 128);
    fields.fail(name, "is not a field of this request; the server runs with --strict-fields", "unknown_parameter");
  }
}

void read_chat_logprobs(Fields& fields, CommonFields& common) {
  const bool wanted = fields.boolean("logprobs", false);
  const bool counted = fields.find("top_logprobs") != nullptr;
  const int64_t top = fields.integer("top_logprobs", 0, 0, kMaxTopLogprobs);
  if (counted && !wanted && fields.ok()) return fields.fail("top_logprobs", "works only with \"logprobs\": true");
  if (wanted) common.sampling.logprobs = static_cast<int>(top);
}

// reasoning_effort goes to the template; "none" is its enable_thinking = false.
void read_template_fields(Fields& fields, const RequestLimits& limits, ChatRequest& chat) {
  chat.add_generation_prompt = fields.boolean("add_generation_prompt", true);
  chat.continue_final_message = fields.boolean("continue_final_message", false);
  if (limits.allow_chat_template) {
    chat.chat_template = fields.text("chat_template");
  } else {
    fields.not_offered("chat_template", nullptr, "the server uses the model's own (--allow-chat-template lifts that)");
  }
  fields.not_offered("documents", Json::array(), "documents are not offered; put them into a message");
  Json kwargs = Json::object();
  if (const Json* value = fields.find("chat_template_kwargs"); value != nullptr) {
    if (!value->is_object()) {
      return fields.fail("chat_template_kwargs", "is " + shown(*value) + ", expected an object", "invalid_type");
    }
    kwargs = *value;
  }
  const std::string effort = fields.text("reasoning_effort");
  static constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  if (!effort.empty()) {
    if (std::find(std::begin(kEfforts), std::end(kEfforts), effort) == std::end(kEfforts)) {
      return fields.fail("reasoning_effort", "is \"" + effort.substr(0, 40) +
                                                 "\", expected none, minimal, low, medium, high, xhigh or max");
    }
    if (effort == "none" && !kwargs.contains("enable_thinking")) kwargs["enable_thinking"] = false;
    if (effort != "none" && !kwargs.contains("reasoning_effort")) kwargs["reasoning_effort"] = effort;
  }
  if (!kwargs.empty()) chat.template_kwargs_json = kwargs.dump();
  if (chat.continue_final_message) {
    if (fields.find("add_generation_prompt") == nullptr) chat.add_generation_prompt = false;
    if (chat.add_generation_prompt) {
      return fields.fail("continue_final_message", "cannot go together with add_generation_prompt");
    }
    if (!chat.messages.empty() && chat.messages.back().role != "assistant") {
      fields.fail("continue_final_message", "needs a last message of role assistant");
    }
  }
}

Result<Json> parse_object(std::string_view body) {
  PLUMB_TRY(Json root, parse_strict_json(body));
  if (!root.is_object()) return Error{Code::Usage, "the body is " + shown(root) + ", expected a JSON object", {}, {}};
  return root;
}

}  // namespace

ParsedChat parse_chat_request(std::string_view body, const RequestLimits& limits) {
  const Result<Json> root = parse_object(body);
  if (!root) return bad_request("", root.error().what, "invalid_json");
  Fields fields(*root, "");
  ChatRequest chat;
  read_common(fields, chat.common, limits);
  read_max_tokens(fields, chat.common, "max_tokens", 1);
  read_max_tokens(fields, chat.common, "max_completion_tokens", 1);
  check_min_tokens(fields, chat.common);
  read_chat_logprobs(fields, chat.common);
  read_tools(fields, chat.tools);
  read_messages(fields, chat.messages);
  read_template_fields(fields, limits, chat);
  chat.separate_reasoning = fields.boolean("separate_reasoning", true);
  chat.stop_in_reasoning = fields.boolean("stop_in_reasoning", false);
  fields.not_offered("audio", nullptr, kTextOnly);
  fields.not_offered("modalities", Json::array({"text"}), kTextOnly);
  fields.not_offered("prediction", nullptr, "predicted outputs are not offered");
  fields.not_offered("web_search_options", nullptr, "web search is not offered");
  fields.not_offered("echo", false, "echo works in /v1/completions");
  finish(fields, chat.common, limits);
  if (fields.error()) return *fields.error();
  return chat;
}

ParsedChat parse_template_request(std::string_view body, const RequestLimits& limits) {
  const Result<Json> root = parse_object(body);
  if (!root) return bad_request("", root.error().what, "invalid_json");
  Fields fields(*root, "");
  ChatRequest chat;
  chat.common.model = fields.text("model");
  read_tools(fields, chat.tools);
  read_messages(fields, chat.messages);
  read_template_fields(fields, limits, chat);
  if (fields.error()) return *fields.error();
  return chat;
}

ParsedCompletion parse_completion_request(std::string_view body, const RequestLimits& limits) {
  const Result<Json> root = parse_object(body);
  if (!root) return bad_request("", root.error().what, "invalid_json");
  Fields fields(*root, "");
  CompletionRequest request;
  CommonFields& common = request.common;
  read_common(fields, common, limits);
  request.echo = fields.boolean("echo", false);
  common.sampling.logprobs = static_cast<int>(fields.integer("logprobs", -1, 0, kMaxTopLogprobs));
  read_max_tokens(fields, common, "max_tokens", request.echo && common.sampling.logprobs >= 0 ? 0 : 1);
  check_min_tokens(fields, common);
  request.prompt_only = common.max_tokens == 0;
  read_prompts(fields, request.prompts, limits);
  fields.neutral("parallel_tool_calls");
  fields.not_offered("suffix", "", "text is completed at its end only");
  fields.not_offered("best_of", common.n, "best_of is not offered beyond n");
  finish(fields, common, limits);
  if (fields.error()) return *fields.error();
  return request;
}

std::string ignored_fields_header(const CommonFields& common) {
  std::string list;
  int shown_names = 0;
  for (const std::string& name : common.ignored_fields) {
    const bool plain = !name.empty() && name.size() <= 64 &&
                       std::all_of(name.begin(), name.end(), [](char c) { return c > 0x20 && c < 0x7f && c != ','; });
    if (!plain || shown_names == 20) continue;
    list.append(list.empty() ? "" : ", ").append(name);
    ++shown_names;
  }
  return list;
}

uint64_t choice_seed(uint64_t seed, int index) {
  if (index == 0) return seed;
  uint64_t x = seed + static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace plumb

// Requests after validation: plain values; no JSON travels further, except opaque values that only the template reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/sampling.h"
#include "grammar/compile.h"
#include "serve/api_error.h"
#include "serve/tool_schema.h"

namespace plumb {

// What a request is checked against.
struct RequestLimits {
  int vocab_size = 0;
  int max_context = 0;
  float default_temperature = 1.0f;  // generation_config.json, else 1
  float default_top_p = 1.0f;
  int default_top_k = 0;
  bool allow_chat_template = false;
  bool strict_fields = false;  // unknown fields are 400 instead of a response header
};

// What the answer must look like, and the field that said so.
struct ConstraintField {
  grammar::ContentShape shape{};
  std::string field{};
};

// The fields both completion endpoints share.
struct CommonFields {
  std::string model{};  // "": whatever is served
  SamplingParams sampling{};
  bool has_seed = false;
  std::optional<int64_t> max_tokens{};  // absent: the rest of the context
  int min_tokens = 0;
  int n = 1;
  std::vector<std::string> stop{};
  std::vector<int32_t> stop_token_ids{};
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool stream = false;
  bool include_usage = false;
  int priority = 0;
  std::string cache_salt{};
  ConstraintField constraint{};
  std::vector<std::string> ignored_fields{};  // unknown ones, listed in a response header
};

struct ToolCallMessage {
  std::string id{}, name{};
  std::string arguments_json{};  // an object
};

struct ChatMessage {
  std::string role{};
  std::optional<std::string> content{};  // absent: null or text parts
  std::vector<std::string> parts{};      // content given as a list of text parts
  bool has_parts = false;
  std::optional<std::string> reasoning{};  // reasoning_content or reasoning
  std::string name{}, tool_call_id{};
  std::vector<ToolCallMessage> tool_calls{};
};

enum class ToolChoice : uint8_t { None, Auto, Required, Named };

struct ToolRequest {
  std::vector<ToolSpec> specs{};
  std::string list_json{};  // as it came, for the template; "" without tools
  ToolChoice choice = ToolChoice::Auto;
  std::string named{};
  bool parallel = true;
  bool callable() const { return !specs.empty() && choice != ToolChoice::None; }
};

struct ChatRequest {
  CommonFields common{};
  std::vector<ChatMessage> messages{};
  ToolRequest tools{};
  std::string chat_template{};         // "": the model's own
  std::string template_kwargs_json{};  // an object, or ""; reasoning_effort is in it
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool separate_reasoning = true;
  bool stop_in_reasoning = false;  // search the stop strings in the reasoning too
};

// A prompt of /v1/completions: text, or ids already.
using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  CommonFields common{};
  std::vector<Prompt> prompts{};
  bool echo = false;
  bool prompt_only = false;  // max_tokens 0 with echo: nothing is generated
};

using ParsedChat = std::variant<ChatRequest, ApiError>;
using ParsedCompletion = std::variant<CompletionRequest, ApiError>;

ParsedChat parse_chat_request(std::string_view body, const RequestLimits& limits);
ParsedCompletion parse_completion_request(std::string_view body, const RequestLimits& limits);

// {messages, add_generation_prompt?, continue_final_message?, chat_template_kwargs?, ...} of /apply-template and
// /tokenize; sampling fields are not looked at.
ParsedChat parse_template_request(std::string_view body, const RequestLimits& limits);

// "a, b" for the response header that lists what was ignored; only names that fit a header, at most 20.
std::string ignored_fields_header(const CommonFields& common);

// Seed of choice `index`: the first keeps the request's own.
uint64_t choice_seed(uint64_t seed, int index);

}  // namespace plumb

#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "text/files.h"
#include "text/jinja_interp.h"
#include "text/jinja_parser.h"

namespace plumb {

using Json = nlohmann::ordered_json;

struct ChatTemplate::Data {
  struct Named {
    std::string source{};
    jinja::Template program{};
  };
  std::map<std::string, Named, std::less<>> templates{};       // "default", perhaps "tool_use" and others
  std::vector<std::pair<std::string, Json>> special_tokens{};  // bos_token and the like

  Status add(std::string name, std::string source) {
    PLUMB_TRY(jinja::Template program, jinja::parse_template(source));
    templates.insert_or_assign(std::move(name), Named{std::move(source), std::move(program)});
    return {};
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Data> data) : data_(std::move(data)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

namespace {

Result<Json> parse_config(std::string_view text) {
  if (text.empty()) return Json::object();
  Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return Error{Code::Corrupt, "tokenizer_config.json: not a JSON object", {}, {}};
  return config;
}

// A token is written as its text or as an object with the text in `content`.
Json token_text(const Json& token) {
  if (token.is_object() && token.contains("content")) return token["content"];
  return token;
}

std::vector<std::pair<std::string, Json>> special_tokens_of(const Json& config) {
  std::vector<std::pair<std::string, Json>> out;
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const auto it = config.find(name);
    if (it != config.end() && token_text(*it).is_string()) out.emplace_back(name, token_text(*it));
  }
  const auto more = config.find("additional_special_tokens");
  if (more != config.end() && more->is_array()) {
    Json list = Json::array();
    for (const Json& token : *more) list.push_back(token_text(token));
    out.emplace_back("additional_special_tokens", std::move(list));
  }
  return out;
}

// From user or tool messages every text but the role can carry what somebody else wrote.
Result<jinja::Value> message_value(const Json& message) {
  const auto role = message.is_object() ? message.find("role") : message.end();
  const bool trusted = !message.is_object() || role == message.end() || *role == "system" || *role == "developer" ||
                       *role == "assistant";
  if (trusted) return jinja::from_json(message, {});
  jinja::Dict dict;
  for (const auto& [key, item] : message.items()) {
    PLUMB_TRY(jinja::Value value, jinja::from_json(item, {.tainted = key != "role"}));
    dict.set(jinja::Value::text(key), std::move(value));
  }
  return jinja::make_dict(std::move(dict));
}

Result<jinja::Value> messages_value(const Json& messages) {
  if (!messages.is_array()) return Error{Code::Usage, "'messages' is not a list", {}, {}};
  std::vector<jinja::Value> out;
  for (const Json& message : messages) {
    PLUMB_TRY(jinja::Value value, message_value(message));
    out.push_back(std::move(value));
  }
  return jinja::make_list(std::move(out));
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view tokenizer_config_json) {
  PLUMB_TRY(const Json config, parse_config(tokenizer_config_json));
  auto data = std::make_unique<Data>();
  PLUMB_TRY_STATUS(data->add("default", std::string(source)));
  data->special_tokens = special_tokens_of(config);
  return ChatTemplate(std::move(data));
}

Result<ChatTemplate> ChatTemplate::with_source(std::string_view source) const {
  auto data = std::make_unique<Data>();
  PLUMB_TRY_STATUS(data->add("default", std::string(source)));
  data->special_tokens = data_->special_tokens;
  return ChatTemplate(std::move(data));
}

namespace {

struct Source {
  std::string name{};
  std::string text{};
};

Result<std::vector<Source>> template_files(const std::filesystem::path& model_dir) {
  std::vector<Source> out;
  std::error_code error;
  const auto main = model_dir / "chat_template.jinja";
  if (!std::filesystem::exists(main, error)) return out;
  PLUMB_TRY(std::string text, read_text_file(main));
  out.push_back({"default", std::move(text)});
  for (auto it = std::filesystem::directory_iterator(model_dir / "chat_templates", error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    if (it->path().extension() != ".jinja") continue;
    PLUMB_TRY(std::string more, read_text_file(it->path()));
    out.push_back({it->path().stem().string(), std::move(more)});
  }
  return out;
}

Result<std::vector<Source>> template_entries(const Json& config) {
  std::vector<Source> out;
  const auto entry = config.find("chat_template");
  if (entry == config.end() || entry->is_null()) return out;
  if (entry->is_string()) {
    out.push_back({"default", entry->get<std::string>()});
    return out;
  }
  const Error malformed{
      Code::Corrupt, "tokenizer_config.json: 'chat_template' is neither a text nor a list of them", {}, {}};
  if (!entry->is_array()) return malformed;
  for (const Json& named : *entry) {
    const bool good = named.is_object() && named.contains("name") && named["name"].is_string() &&
                      named.contains("template") && named["template"].is_string();
    if (!good) return malformed;
    out.push_back({named["name"].get<std::string>(), named["template"].get<std::string>()});
  }
  return out;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::load(const std::filesystem::path& model_dir) {
  std::string config_text;
  std::error_code error;
  if (std::filesystem::exists(model_dir / "tokenizer_config.json", error)) {
    PLUMB_TRY(config_text, read_text_file(model_dir / "tokenizer_config.json"));
  }
  PLUMB_TRY(const Json config, parse_config(config_text));
  PLUMB_TRY(std::vector<Source> sources, template_files(model_dir));
  if (sources.empty()) {
    PLUMB_TRY(sources, template_entries(config));
  }
  if (sources.empty())
    return Error{Code::NotFound,
                 fmt::format("{} has no chat template", model_dir.string()),
                 "neither chat_template.jinja nor 'chat_template' in tokenizer_config.json is there",
                 {"plain completions, without a template"}};
  auto data = std::make_unique<Data>();
  for (Source& source : sources) {
    const Status added = data->add(source.name, std::move(source.text));
    if (!added) {
      Error wrong = added.error();
      if (wrong.code == Code::Usage) wrong.code = Code::Corrupt;  // a file of the checkpoint, not the user's words
      return std::move(wrong).in(fmt::format("{}, template '{}'", model_dir.string(), source.name));
    }
  }
  data->special_tokens = special_tokens_of(config);
  return ChatTemplate(std::move(data));
}

bool ChatTemplate::mentions(std::string_view word) const {
  return std::any_of(data_->templates.begin(), data_->templates.end(),
                     [&](const auto& entry) { return entry.second.source.find(word) != std::string::npos; });
}

Result<Rendered> ChatTemplate::render(const Json& messages, const Json& tools, const Json& kwargs,
                                      const RenderOptions& options) const {
  if (!kwargs.is_object() && !kwargs.is_null())
    return Error{Code::Usage, "the template's arguments are not a JSON object", {}, {}};
  auto chosen = data_->templates.find(std::string_view("default"));
  if (const auto with_tools = data_->templates.find(std::string_view("tool_use"));
      with_tools != data_->templates.end() && (!tools.is_null() || chosen == data_->templates.end()))
    chosen = with_tools;
  if (chosen == data_->templates.end())
    return Error{Code::Corrupt, "the model's chat templates have no 'default'", {}, {}};
  jinja::Interp interp({}, options.now.value_or(std::time(nullptr)));
  for (const auto& [name, token] : data_->special_tokens) {
    PLUMB_TRY(jinja::Value value, jinja::from_json(token, {}));
    interp.define(name, std::move(value));
  }
  interp.define("documents", jinja::Value(jinja::None{}));
  interp.define("add_generation_prompt", jinja::Value(false));
  if (kwargs.is_object())
    for (const auto& [name, item] : kwargs.items()) {
      PLUMB_TRY(jinja::Value value, jinja::from_json(item, {}));
      interp.define(name, std::move(value));
    }
  PLUMB_TRY(jinja::Value tool_list, jinja::from_json(tools, {}));
  interp.define("tools", std::move(tool_list));
  PLUMB_TRY(jinja::Value message_list, messages_value(messages));
  interp.define("messages", std::move(message_list));
  PLUMB_TRY(TaintedText text, interp.run(chosen->second.program));
  return Rendered{std::move(text.bytes), std::move(text.taint)};
}

}  // namespace plumb

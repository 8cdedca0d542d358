// A model's chat template: messages to the text of a prompt (model.md section 6).
#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/span.h"

namespace plumb {

struct Rendered {
  std::string text{};
  // Bytes that came from the content of user and tool messages: for EncodeOptions::untrusted (api.md 66).
  std::vector<Span> untrusted{};
};

struct RenderOptions {
  std::optional<std::time_t> now{};  // for strftime_now; the clock's time if absent
};

class ChatTemplate {
 public:
  // chat_template.jinja (and chat_templates/*.jinja beside it), else `chat_template` in tokenizer_config.json, as one
  // text or a list of {"name", "template"}.
  static Result<ChatTemplate> load(const std::filesystem::path& model_dir);
  // One template's source, e.g. a request's own; `tokenizer_config_json` (may be empty) gives bos_token and the like.
  static Result<ChatTemplate> parse(std::string_view source, std::string_view tokenizer_config_json);
  // Another source, such as a request's own, with this one's special tokens.
  Result<ChatTemplate> with_source(std::string_view source) const;
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `messages` as prepare_messages() leaves them; `tools` an array or null; `kwargs` an object of further variables,
  // such as add_generation_prompt or enable_thinking. Errors carry Code::Usage and name the template's line.
  Result<Rendered> render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                          const nlohmann::ordered_json& kwargs, const RenderOptions& options = {}) const;

  // Whether the source speaks of this word: how one learns that a template knows, say, the role "developer".
  bool mentions(std::string_view word) const;

 private:
  struct Data;
  explicit ChatTemplate(std::unique_ptr<const Data> data);
  std::unique_ptr<const Data> data_;
};

}  // namespace plumb

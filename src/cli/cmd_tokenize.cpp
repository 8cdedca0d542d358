// plumb tokenize, plumb render: what the model's own files make of a text or a conversation, as JSON.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "checkpoint/model_source.h"
#include "cli/cli.h"
#include "text/chat_messages.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

struct TokenizeCommand {
  std::string model{};
  std::string text{};
  std::string file{};
  std::string ids{};
  bool has_text = false, has_ids = false;  // an empty text is one too
  bool plain = false;
};

struct RenderCommand {
  std::string model{};
  std::string file{};
  std::string user{};
  bool has_user = false;
  bool no_generation_prompt = false;
  std::string kwargs{};
};

Result<std::string> read_input(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error{Code::NotFound, "cannot read '" + path + "'", "", {"a file's path, or - for standard input"}};
  return std::string(std::istreambuf_iterator<char>(in), {});
}

Result<Json> parse_json(const std::string& text, const std::string& what) {
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) return Error{Code::Usage, what + " is not JSON", "", {}};
  return value;
}

void print(const Json& json) { std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str()); }

Result<Json> token_list(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Json tokens = Json::array();
  for (const int32_t id : ids) tokens.push_back(tokenizer.token_text(id));
  return Json{{"count", ids.size()}, {"ids", ids}, {"tokens", tokens}};
}

Status decode(const TokenizeCommand& options, const Tokenizer& tokenizer) {
  if (options.plain)
    return Error{Code::Unsupported, "--plain has nothing to act on", "ids are read, not text", {"without --plain"}};
  PLUMB_TRY(const Json ids, parse_json(options.ids, "--decode"));
  if (!ids.is_array()) return Error{Code::Usage, "--decode wants a list of ids, such as [1,2,3]", "", {}};
  std::vector<int32_t> list;
  for (const Json& id : ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(tokenizer.vocab_size()))
      return Error{Code::Usage,
                   "--decode: " + id.dump(-1, ' ', false, Json::error_handler_t::replace) + " is not a token id",
                   "ids are integers from 0 to " + std::to_string(tokenizer.vocab_size() - 1),
                   {}};
    list.push_back(id.get<int32_t>());
  }
  print({{"text", tokenizer.decode(list, false)}});
  return Ok{};
}

Status tokenize(const TokenizeCommand& options, const CliContext& context) {
  PLUMB_TRY(const ModelSource source, resolve_model(options.model, context.hf_home));
  PLUMB_TRY(const Tokenizer tokenizer, Tokenizer::load(source.folder));
  if (options.has_ids) return decode(options, tokenizer);
  if (!options.has_text && options.file.empty())
    return Error{Code::Usage, "there is nothing to tokenize", "", {"--text TEXT", "--file FILE", "--decode IDS"}};
  std::string text = options.text;
  if (!options.file.empty()) {
    PLUMB_TRY(text, read_input(options.file));
  }
  PLUMB_TRY(const std::vector<int32_t> ids, tokenizer.encode(text, {.match_added_tokens = !options.plain}));
  PLUMB_TRY(const Json out, token_list(tokenizer, ids));
  print(out);
  return Ok{};
}

Status render(const RenderCommand& options, const CliContext& context) {
  if (!options.has_user && options.file.empty())
    return Error{Code::Usage, "there is no conversation to render", "", {"--user TEXT", "--messages FILE"}};
  PLUMB_TRY(const ModelSource source, resolve_model(options.model, context.hf_home));
  PLUMB_TRY(const Tokenizer tokenizer, Tokenizer::load(source.folder));
  PLUMB_TRY(const ChatTemplate chat, ChatTemplate::load(source.folder));
  Json body{{"messages", {{{"role", "user"}, {"content", options.user}}}}};
  if (!options.file.empty()) {
    PLUMB_TRY(const std::string text, read_input(options.file));
    PLUMB_TRY(body, parse_json(text, options.file));
    if (body.is_array()) body = Json{{"messages", body}};
  }
  if (!body.is_object() || !body.contains("messages"))
    return Error{Code::Usage,
                 options.file + " has no 'messages'",
                 "",
                 {R"(a list of messages, or {"messages": [...], "tools": [...]})"}};
  Json kwargs = Json::object();
  if (!options.kwargs.empty()) {
    PLUMB_TRY(kwargs, parse_json(options.kwargs, "--kwargs"));
    if (!kwargs.is_object())
      return Error{Code::Usage, "--kwargs is no JSON object", "", {R"(--kwargs '{"enable_thinking": false}')"}};
  }
  kwargs["add_generation_prompt"] = !options.no_generation_prompt;
  PLUMB_TRY(const Json messages, prepare_messages(body["messages"], chat));
  PLUMB_TRY(const Rendered rendered, chat.render(messages, body.value("tools", Json()), kwargs));
  PLUMB_TRY(const std::vector<int32_t> ids, tokenizer.encode(rendered.text, {.untrusted = rendered.untrusted}));
  PLUMB_TRY(Json out, token_list(tokenizer, ids));
  out["text"] = rendered.text;
  print(out);
  return Ok{};
}

}  // namespace

void add_tokenize_commands(CLI::App& app, CliContext& context, int& exit_code) {
  auto tokenize_options = std::make_shared<TokenizeCommand>();
  CLI::App* tokenize_command = app.add_subcommand("tokenize", "Text to token ids, or ids to text, as JSON");
  tokenize_command->add_option("model", tokenize_options->model, "Model folder or cached name")->required();
  auto* text = tokenize_command->add_option("--text", tokenize_options->text, "The text");
  auto* file =
      tokenize_command->add_option("--file", tokenize_options->file, "A file with the text; - is standard input");
  auto* ids = tokenize_command->add_option("--decode", tokenize_options->ids, "A JSON list of ids to turn into text");
  text->excludes(file)->excludes(ids);
  file->excludes(ids);
  tokenize_command->add_flag("--plain", tokenize_options->plain, "Read special tokens in the text as ordinary text");
  tokenize_command->callback([tokenize_options, text, ids, &context, &exit_code] {
    tokenize_options->has_text = text->count() > 0;
    tokenize_options->has_ids = ids->count() > 0;
    if (Status status = tokenize(*tokenize_options, context); !status) exit_code = report(status.error());
  });

  auto render_options = std::make_shared<RenderCommand>();
  CLI::App* render_command = app.add_subcommand("render", "A conversation as the model's template writes it, as JSON");
  render_command->add_option("model", render_options->model, "Model folder or cached name")->required();
  auto* messages = render_command->add_option("--messages", render_options->file,
                                              "JSON file with the messages; - is standard input");
  auto* user = render_command->add_option("--user", render_options->user, "One user message");
  messages->excludes(user);
  render_command->add_option("--kwargs", render_options->kwargs,
                             R"(JSON for the template, such as {"enable_thinking": false})");
  render_command->add_flag("--no-generation-prompt", render_options->no_generation_prompt,
                           "Do not open the assistant's turn");
  render_command->callback([render_options, user, &context, &exit_code] {
    render_options->has_user = user->count() > 0;
    if (Status status = render(*render_options, context); !status) exit_code = report(status.error());
  });
}

}  // namespace plumb

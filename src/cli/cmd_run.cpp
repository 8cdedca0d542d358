// plumb run: one answer. plumb chat: a conversation in the terminal.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "cli/cli.h"
#include "cli/service.h"
#include "cli/value_checks.h"
#include "engine/generate.h"
#include "text/detokenizer.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

volatile std::sig_atomic_t g_interrupted = 0;  // Ctrl-C stops the answer, a second one at the prompt ends the program

struct TextFlags {
  std::string system{};
  int max_tokens = 0;  // 0: what the context leaves
  float temperature = -1, top_p = -1;
  std::optional<uint64_t> seed{};
  bool no_thinking = false;
  bool raw = false;
};

struct RunCommand {
  ModelOptions model{};
  EngineFlags engine{};
  TextFlags text{};
  std::string prompt{};
};

void add_text_options(CLI::App& command, TextFlags& t) {
  command.add_option("--system", t.system, "System message");
  command.add_option("--max-tokens", t.max_tokens, "Longest answer in tokens; 0: what the context leaves")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  command.add_option("--temperature", t.temperature, "0 is greedy; default: the checkpoint's own, else 1")
      ->check(number_from(0, 2));
  command.add_option("--top-p", t.top_p, "Default: the checkpoint's own, else 1")->check(number_from(0, 1));
  command.add_option("--seed", t.seed, "Repeats an answer")->check(unsigned_number());
  command.add_flag("--no-thinking", t.no_thinking, "enable_thinking=false for the template");
}

SamplingParams sampling_of(const TextFlags& t, const GenerationConfig& g) {
  SamplingParams p;
  p.temperature = t.temperature >= 0 ? t.temperature : g.temperature.value_or(1.0f);
  p.top_p = t.top_p >= 0 ? t.top_p : g.top_p.value_or(1.0f);
  p.top_k = g.top_k.value_or(0);
  p.seed = t.seed ? *t.seed : std::random_device{}();
  return p;
}

Result<std::vector<int32_t>> prompt_ids(const Service& service, const Json& messages, const TextFlags& t) {
  if (t.raw) return service.tokenizer->encode(messages.back()["content"].get_ref<const std::string&>());
  Json kwargs{{"add_generation_prompt", true}};
  if (t.no_thinking) kwargs["enable_thinking"] = false;
  return service.chat_ids(messages, kwargs);
}

// Streams an answer to standard output; returns its text.
Result<std::string> answer(Service& service, std::vector<int32_t> ids, const TextFlags& t) {
  GenerateRequest request{
      .request_id = "terminal", .prompt_ids = std::move(ids), .sampling = sampling_of(t, service.generation)};
  const int left = service.engine->max_context() - static_cast<int>(request.prompt_ids.size());
  if (left < 1)
    return Error{Code::Usage,
                 "the conversation has " + std::to_string(request.prompt_ids.size()) + " tokens",
                 "the context holds " + std::to_string(service.engine->max_context()),
                 {"a shorter one", "a larger --context"}};
  request.max_tokens = t.max_tokens > 0 ? std::min(t.max_tokens, left) : left;
  request.stop_ids = service.eos_ids;
  Detokenizer text(*service.tokenizer);
  std::string whole;
  const auto show = [&whole](const std::string& piece) {
    whole += piece;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  g_interrupted = 0;
  PLUMB_TRY(const Generated done, generate(*service.engine, std::move(request), [&](const TokenEvent& event) {
              if (event.id >= 0) show(text.push(event.id));
              return g_interrupted == 0;
            }));
  show(text.flush());
  std::printf("\n");
  return whole;
}

Json first_messages(const TextFlags& t) {
  Json messages = Json::array();
  if (!t.system.empty()) messages.push_back({{"role", "system"}, {"content", t.system}});
  return messages;
}

Status run(RunCommand& command, const CliContext& context) {
  if (command.text.raw && (!command.text.system.empty() || command.text.no_thinking))
    return Error{Code::Unsupported,
                 command.text.no_thinking ? "--no-thinking has nothing to act on" : "--system has nothing to act on",
                 "with --raw the prompt is taken as it is, without the chat template that reads it",
                 {"without --raw"}};
  PLUMB_TRY(const std::unique_ptr<Service> service, start_service(command.model, command.engine, context));
  Json messages = first_messages(command.text);
  messages.push_back({{"role", "user"}, {"content", command.prompt}});
  PLUMB_TRY(std::vector<int32_t> ids, prompt_ids(*service, messages, command.text));
  PLUMB_TRY(const std::string text, answer(*service, std::move(ids), command.text));
  return Ok{};
}

constexpr const char* kHelp =
    "/help     this list\n/history  the conversation so far\n/reset    start over\n/undo     take back the last "
    "exchange\n"
    "/quit     leave (or Ctrl-D); Ctrl-C stops an answer\n";

// True when the line was a command.
bool chat_command(const std::string& line, Json& messages, const TextFlags& t, bool& quit) {
  if (line.empty() || line[0] != '/' || line == "/nothink") return false;
  if (line == "/quit" || line == "/exit") {
    quit = true;
  } else if (line == "/reset") {
    messages = first_messages(t);
  } else if (line == "/undo") {
    for (int i = 0; i < 2 && !messages.empty() && messages.back()["role"] != "system"; ++i)
      messages.erase(messages.size() - 1);
  } else if (line == "/history") {
    for (const Json& m : messages)
      std::printf("%s: %s\n", m["role"].get_ref<const std::string&>().c_str(),
                  m["content"].get_ref<const std::string&>().c_str());
  } else {
    std::fputs(kHelp, stdout);
  }
  return true;
}

Status chat(RunCommand& command, const CliContext& context) {
  PLUMB_TRY(const std::unique_ptr<Service> service, start_service(command.model, command.engine, context));
  std::signal(SIGINT, [](int) { g_interrupted = 1; });
  Json messages = first_messages(command.text);
  std::printf("%s; /help lists commands\n", service->source.name.c_str());
  bool quit = false;
  for (std::string line; !quit;) {
    std::printf("> ");
    std::fflush(stdout);
    if (!std::getline(std::cin, line)) break;
    if (line.empty() || chat_command(line, messages, command.text, quit)) continue;
    messages.push_back({{"role", "user"}, {"content", line}});
    Result<std::vector<int32_t>> ids = prompt_ids(*service, messages, command.text);
    Result<std::string> text = ids ? answer(*service, std::move(*ids), command.text) : Result<std::string>(ids.error());
    if (!text) {
      report(text.error());
      messages.erase(messages.size() - 1);
      continue;
    }
    messages.push_back({{"role", "assistant"}, {"content", *text}});
  }
  return Ok{};
}

}  // namespace

void add_run_commands(CLI::App& app, CliContext& context, int& exit_code) {
  auto one = std::make_shared<RunCommand>();
  one->engine.max_running = 1;
  CLI::App* run_sub = app.add_subcommand("run", "Answer one prompt and end");
  add_model_options(*run_sub, one->model);
  run_sub->add_option("prompt", one->prompt, "The user's message")->required();
  add_engine_options(*run_sub, one->model, one->engine);
  add_text_options(*run_sub, one->text);
  run_sub->add_flag("--raw", one->text.raw, "The prompt as it is, without the chat template");
  run_sub->callback([one, &context, &exit_code] {
    if (Status status = run(*one, context); !status) exit_code = report(status.error());
  });

  auto many = std::make_shared<RunCommand>();
  many->engine.max_running = 1;
  CLI::App* chat_sub = app.add_subcommand("chat", "Talk with the model in the terminal");
  add_model_options(*chat_sub, many->model);
  add_engine_options(*chat_sub, many->model, many->engine);
  add_text_options(*chat_sub, many->text);
  chat_sub->callback([many, &context, &exit_code] {
    if (Status status = chat(*many, context); !status) exit_code = report(status.error());
  });
}

}  // namespace plumb

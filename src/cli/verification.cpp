#include "cli/verification.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kVerifyFile = "verify.jsonl";
constexpr int kAnswerTokens = 64;

// {"prompt": "2+2?"} or {"messages": [...]}, "expect": "4", and if wanted "max_tokens" and "raw" (no chat template).
Result<TextCase> parse_case(const Service& service, const std::string& line, const std::string& name) {
  const auto bad = [&](const std::string& why) {
    return Error{Code::Usage, name + " can't be used", why, {R"({"prompt": "What is 2+2?", "expect": "4"})"}};
  };
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return bad("it is no JSON object");
  if (!json.contains("expect") || !json["expect"].is_string()) return bad("'expect' must be a text");
  const bool has_prompt = json.contains("prompt") && json["prompt"].is_string();
  const bool has_messages = json.contains("messages") && json["messages"].is_array();
  if (has_prompt == has_messages) return bad("it needs either a 'prompt' (a text) or 'messages' (a list)");
  const Json max_tokens = json.value("max_tokens", Json(kAnswerTokens));
  if (!max_tokens.is_number_integer() || max_tokens < 1) return bad("'max_tokens' must be a positive integer");
  if (json.contains("raw") && !json["raw"].is_boolean()) return bad("'raw' must be true or false");
  TextCase one{.name = name,
               .stop_ids = service.eos_ids,
               .max_tokens = max_tokens.get<int>(),
               .expected = json["expect"].get<std::string>(),
               .to_text = [&service](std::span<const int32_t> ids) {
                 return service.tokenizer->decode(ids, /*skip_special=*/true);
               }};
  if (json.value("raw", false)) {
    if (!has_prompt) return bad("'raw' wants a 'prompt'");
    PLUMB_TRY(one.prompt_ids, service.tokenizer->encode(json["prompt"].get<std::string>()));
    return one;
  }
  const Json messages =
      has_messages ? json["messages"] : Json::array({{{"role", "user"}, {"content", json["prompt"]}}});
  PLUMB_TRY(one.prompt_ids, service.chat_ids(messages, Json{{"add_generation_prompt", true}}));
  return one;
}

Result<std::vector<TextCase>> read_cases(const Service& service, const std::string& asked) {
  const std::filesystem::path path = asked.empty() ? service.source.folder / kVerifyFile : std::filesystem::path(asked);
  std::vector<TextCase> cases;
  std::ifstream file(path);
  if (!file) {
    if (asked.empty()) return cases;
    return Error{Code::NotFound, "--verify-file " + asked + " can't be read", "", {"a file with a JSON object a line"}};
  }
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    PLUMB_TRY(TextCase one, parse_case(service, line, path.filename().string() + " line " + std::to_string(number)));
    cases.push_back(std::move(one));
  }
  return cases;
}

// A golden file that can't be compared is said to be one: it is there to be compared.
std::optional<Golden> usable_golden(const Service& service, std::string& problem) {
  const std::filesystem::path path = service.source.folder / kGoldenFile;
  if (!std::filesystem::exists(path)) return std::nullopt;
  Result<Golden> golden = read_golden(path);
  if (!golden) {
    problem = golden.error().to_string();
    return std::nullopt;
  }
  const std::string checkpoint = service.checkpoint_id();
  if (golden->checkpoint != checkpoint)
    problem = path.string() + " was made for checkpoint " + golden->checkpoint + ", this one is " + checkpoint +
              ": make it anew with plumb golden make";
  if (golden->numeric_profile != service.model().planned.plan.numeric_profile)
    problem = path.string() + " was made in the numeric profile " + golden->numeric_profile + ", the plan has " +
              service.model().planned.plan.numeric_profile + ": make it anew with --numeric-profile";
  return *std::move(golden);
}

}  // namespace

void add_verify_options(CLI::App& command, VerifyFlags& flags) {
  command
      .add_option("--verify", flags.level,
                  "Checks before the server is ready: quick, full, off (then it is unverified)")
      ->check(CLI::IsMember({"quick", "full", "off"}));
  command.add_option("--verify-file", flags.file,
                     "Prompts with expected answers, a JSON object a line; default: verify.jsonl beside the model");
  command.add_option("--verification-out", flags.out, "Also write the receipt of the checks to this file");
}

Result<Receipt> verify_service(const Service& service, const Forward& forward, const EngineOptions& options,
                               const VerifyFlags& flags) {
  SelfCheckInput input{
      .forward = forward,
      .options = options,
      .registry = service.registry,
      .pool = service.pool.get(),
      .full = flags.level == "full",
      .checked_tensors = static_cast<int64_t>(service.model().opened.checkpoint->tensors().size()),
      .progress = [](const std::string& check, size_t number, size_t of) {
        log_info("verifying: " + check + " (" + std::to_string(number) + " of " + std::to_string(of) + ")");
      }};
  PLUMB_TRY(input.texts, read_cases(service, flags.file));
  const std::optional<Golden> golden = usable_golden(service, input.golden_problem);
  if (golden) input.golden = &*golden;
  const auto begin = std::chrono::steady_clock::now();
  Receipt receipt{.level = flags.level,
                  .fingerprint = service.fingerprint(),
                  .plan = service.model().planned.plan.fingerprint(),
                  .checks = run_self_checks(input)};
  receipt.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!flags.out.empty()) PLUMB_TRY_STATUS(write_receipt(receipt, flags.out));
  return receipt;
}

}  // namespace plumb

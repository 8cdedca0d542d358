// plumb serve: the HTTP server.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "cli/build_info.h"
#include "cli/cli.h"
#include "cli/guard_flags.h"
#include "cli/service.h"
#include "cli/value_checks.h"
#include "cli/verification.h"
#include "serve/server.h"

namespace plumb {
namespace {

struct ServeCommand {
  ModelOptions model{};
  EngineFlags engine{};
  GuardFlags guard{};
  VerifyFlags verify{};
  ServerOptions server{};
  std::string reasoning_field = "reasoning_content";
  std::string log_format = "text";
  std::string log_level = "info";
  int drain_ms = 30'000;
};

void add_server_options(CLI::App& sub, ServeCommand& c) {
  HttpOptions& http = c.server.http;
  sub.add_option("--host", http.host, "Address to listen on; empty: all");
  sub.add_option("--port", http.port, "Port; 0: any free one, shown in the log");
  sub.add_option("--unix-socket", http.unix_socket, "Also listen on this path");
  sub.add_option("--prefix", http.prefix, "Serve every path under this prefix too")->check(url_prefix());
  sub.add_option("--cors-origin", http.cors_origin, "Access-Control-Allow-Origin; empty: no CORS headers")
      ->check(header_value());
  sub.add_option("--max-connections", http.max_connections, "Open sockets")->check(CLI::Range(1, 1'000'000));
  sub.add_option("--max-body-bytes", http.max_body_bytes, "Largest request body");
  sub.add_option("--api-key", c.server.api_key, "Key that requests must carry; better given as PLUMB_API_KEY")
      ->check(plain_text());
  sub.add_option("--served-model-name", c.server.served_names, "Names clients may use; default: the model's own")
      ->check(plain_text());
  sub.add_flag("--accept-any-model", c.server.accept_any_model, "Serve requests that name another model");
  sub.add_flag("--strict-fields", c.server.strict_fields, "Refuse unknown request fields");
  sub.add_flag("--match-special-tokens", c.server.match_special_in_content,
               "Let message text make control tokens, as Hugging Face does");
  sub.add_option("--reasoning-field", c.reasoning_field, "Where thinking goes: reasoning_content, reasoning, both")
      ->check(CLI::IsMember({"reasoning_content", "reasoning", "both"}));
  sub.add_option("--drain-ms", c.drain_ms, "How long running requests may take after SIGTERM")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  sub.add_option("--log-format", c.log_format, "text or json")->check(CLI::IsMember({"text", "json"}));
  sub.add_option("--log-level", c.log_level, "debug, info, warn, error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}));
}

LogLevel level_of(const std::string& name) {
  return name == "debug"   ? LogLevel::Debug
         : name == "warn"  ? LogLevel::Warn
         : name == "error" ? LogLevel::Error
                           : LogLevel::Info;
}

ReasoningField reasoning_of(const std::string& name) {
  return name == "both"        ? ReasoningField::Both
         : name == "reasoning" ? ReasoningField::Reasoning
                               : ReasoningField::ReasoningContent;
}

ModelServices services_of(const Service& s) {
  ModelServices m{.engine = s.engine.get(),
                  .tokenizer = &*s.tokenizer,
                  .chat_template = s.chat_template ? &*s.chat_template : nullptr,
                  .root = s.source.folder.string(),
                  .model_type = s.model().config().model_type_name(),
                  .vocab_size = s.model().config().vocab_size,
                  .eos_ids = s.eos_ids,
                  .default_temperature = s.generation.temperature.value_or(1.0f),
                  .default_top_p = s.generation.top_p.value_or(1.0f),
                  .default_top_k = s.generation.top_k.value_or(0)};
  const LoadedModel& model = s.model();
  const LayerSources& last = model.opened.map.layers.back();
  m.weight_format =
      last.experts.empty() ? last.mlp->gate_proj.format.to_string() : last.experts.front().gate_proj.format.to_string();
  m.kv_format = to_string(model.planned.kv.latent);
  m.fingerprint = s.fingerprint();
  m.plan_json = model.planned.plan.to_json().dump();
  m.build_json = nlohmann::json{{"id", build_id()}}.dump();
  m.created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return m;
}

// SIGTERM and SIGINT drain; a second one ends the process at once.
void wait_for_signal(const sigset_t& signals) {
  int received = 0;
  sigwait(&signals, &received);
}

void end_at_second_signal(const sigset_t& signals) {
  std::thread([signals] {
    wait_for_signal(signals);
    log_warn("second signal: ending at once");
    _exit(1);
  }).detach();
}

// The server answers 503 meanwhile; a failed check ends the start.
Status verify(const VerifyFlags& flags, const Service& service, const Forward& forward, const EngineOptions& options,
              Server& server) {
  if (flags.level == "off") {
    log_warn("unverified: --verify off");
    return Ok{};
  }
  server.set_state(ServerState::Verifying);
  PLUMB_TRY(const Receipt receipt, verify_service(service, forward, options, flags));
  server.set_verification(receipt.to_json().dump());
  if (receipt.passed()) {
    log_info("verified in " + std::to_string(receipt.seconds) + " s");
    return Ok{};
  }
  server.set_state(ServerState::Failed);
  return receipt.to_error();
}

Status serve(ServeCommand& command, const CliContext& context) {
  log_setup(level_of(command.log_level), command.log_format == "json" ? LogFormat::Json : LogFormat::Text);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts, so that all inherit it
  std::signal(SIGPIPE, SIG_IGN);

  command.server.reasoning_field = reasoning_of(command.reasoning_field);
  if (command.server.served_names.empty()) {
    PLUMB_TRY(const ModelSource source, resolve_model(command.model.model, context.hf_home));
    command.server.served_names = {source.name};
  }
  Server server(command.server);
  PLUMB_TRY_STATUS(server.start());
  log_info("listening on " + command.server.http.host + ":" + std::to_string(server.port()) + ", loading " +
           command.model.model);
  PLUMB_TRY(const GuardOptions guard, guard_options(command.guard));
  PLUMB_TRY(const std::unique_ptr<Service> service,
            start_service(command.model, command.engine, context, guard,
                          [&](const Service& s, const Forward& forward, const EngineOptions& options) {
                            return verify(command.verify, s, forward, options, server);
                          }));
  for (const std::string& note : service->model().planned.plan.notes) log_info("plan: " + note);
  server.set_model(services_of(*service));
  server.set_state(ServerState::Ready);
  log_info("ready: " + command.server.served_names.front() + ", plan " + service->model().planned.plan.fingerprint() +
           ", context " + std::to_string(service->engine->max_context()) + " tokens, " +
           (command.verify.level == "off" ? "unverified" : "verified (" + command.verify.level + ")"));
  wait_for_signal(signals);
  end_at_second_signal(signals);
  log_info("draining: no new requests, running ones have " + std::to_string(command.drain_ms) + " ms");
  server.drain(command.drain_ms);
  log_info("stopped");
  return Ok{};
}

}  // namespace

void add_serve_command(CLI::App& app, CliContext& context, int& exit_code) {
  auto command = std::make_shared<ServeCommand>();
  CLI::App* sub = app.add_subcommand("serve", "Serve the model over an OpenAI-compatible HTTP interface");
  add_model_options(*sub, command->model);
  add_engine_options(*sub, command->model, command->engine);
  add_guard_options(*sub, command->guard);
  add_verify_options(*sub, command->verify);
  add_server_options(*sub, *command);
  sub->callback([command, &context, &exit_code] {
    if (Status status = serve(*command, context); !status) exit_code = report(status.error());
  });
}

}  // namespace plumb

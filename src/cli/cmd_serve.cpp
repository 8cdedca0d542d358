// plumb serve: the HTTP server.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "cli/build_info.h"
#include "cli/cli.h"
#include "cli/configuration.h"
#include "cli/crash_report.h"
#include "cli/guard_flags.h"
#include "cli/ranks.h"
#include "cli/serve_options.h"
#include "cli/service.h"
#include "cli/verification.h"
#include "cli/watchdog.h"
#include "serve/server.h"

namespace plumb {
namespace {

struct ServeCommand {
  ModelOptions model{};
  EngineFlags engine{};
  GuardFlags guard{};
  VerifyFlags verify{};
  RankFlags ranks{};
  ServeFlags serve{};
  std::string configuration{};  // as --print-config shows it
};

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

// SIGTERM and SIGINT: the first ends a server that loads, and drains one that serves; a second one ends the process at
// once. A thread of its own takes them, so that loading can be ended too.
class StopSignals {
 public:
  StopSignals() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts, so that all inherit it
    std::thread([this, signals] {
      for (int received = 0; sigwait(&signals, &received) == 0;) take();
    }).detach();  // as is what it uses: it lives as long as the process
  }

  void serving() { serving_ = true; }
  bool wait_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return asked_; });
  }

 private:
  void take() {
    const std::lock_guard lock(mutex_);
    if (!serving_) log_info("stopped while loading");
    if (!serving_) _exit(0);
    if (asked_) log_warn("second signal: ending at once");
    if (asked_) _exit(1);
    asked_ = true;
    changed_.notify_all();
  }

  std::mutex mutex_{};
  std::condition_variable changed_{};
  bool asked_ = false;
  std::atomic<bool> serving_{false};
};

// Until a signal says to end, or a rank is lost. Meanwhile looks after the engine: a step that hangs is reported and,
// if it goes on, ends the process, so that a supervisor starts another.
void wait_for_signal(StopSignals& signals, const Engine& engine, const ServeFlags& flags) {
  Watchdog watchdog(flags.stuck_exit_ms);
  while (!signals.wait_for(std::chrono::milliseconds(250)) && !engine.lost_rank()) {
    const Watchdog::Action action = watchdog.look(engine.alive(), Watchdog::Clock::now());
    if (action == Watchdog::Action::Report) log_error("a step takes far longer than its size explains: not ready");
    if (action == Watchdog::Action::Recovered) log_warn("the step has ended: ready again");
    if (action == Watchdog::Action::Exit) {
      log_error("the step has not ended for " + std::to_string(flags.stuck_exit_ms) + " ms more: ending the process");
      write_crash_report("a stuck step");
      _exit(exit_code(Code::Peer));
    }
  }
}

// What a crash report holds besides the place and the last lines of the log.
std::string report_facts(const ServeCommand& command, const Service& service) {
  return version_text() + "\nmodel " + service.source.folder.string() + "\nfingerprint " + service.fingerprint() +
         "\n\nconfiguration\n" + command.configuration + "\nplan\n" + service.model().planned.plan.to_json().dump() +
         "\n";
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

// A rank that follows: no requests and no HTTP, only what rank 0 says.
int follow(ServeCommand& command, const CliContext& context, RankGroup& group) {
  Result<std::unique_ptr<Service>> service = start_service(command.model, command.engine, context, {.group = &group});
  if (!service) return end_follower(group, service.error());
  Forward forward = (*service)->instance->forward();
  const Status ended = forward.link->follow(forward);
  if (ended) return 0;
  return forward.link->found_by_all() ? exit_code(ended.error().code) : end_follower(group, ended.error());
}

// A rank has been lost: requests have been answered with an error, and whatever supervises this process starts another.
Status end_with_lost_rank(const Engine& engine, Server& server) {
  constexpr int64_t kToAnswerMs = 1500;
  server.set_state(ServerState::Failed);
  server.drain(kToAnswerMs);
  return *engine.lost_rank();
}

Status serve(ServeCommand& command, const CliContext& context, RankGroup& group) {
  ServeFlags& flags = command.serve;
  static StopSignals& signals = *new StopSignals;
  std::signal(SIGPIPE, SIG_IGN);

  if (flags.server.served_names.empty()) {
    PLUMB_TRY(const ModelSource source, resolve_model(command.model.model, context.hf_home));
    flags.server.served_names = {source.name};
  }
  Server server(flags.server);
  PLUMB_TRY_STATUS(server.start());
  log_info("listening on " + flags.server.http.host + ":" + std::to_string(server.port()) + ", loading " +
           command.model.model);
  PLUMB_TRY(const GuardOptions guard, guard_options(command.guard));
  PLUMB_TRY(const std::unique_ptr<Service> service,
            start_service(command.model, command.engine, context,
                          {.guard = guard,
                           .before_engine =
                               [&](const Service& s, const Forward& forward, const EngineOptions& options) {
                                 return verify(command.verify, s, forward, options, server);
                               },
                           .group = &group}));
  RankLink* const link = service->instance->link.get();
  for (const std::string& note : service->model().planned.plan.notes) log_info("plan: " + note);
  for (const Warning& warning : service->model().planned.plan.warnings)
    log_warn("plan: " + warning.verdict + ": " + warning.text);
  if (!flags.crash_dir.empty())
    PLUMB_TRY_STATUS(prepare_crash_report(flags.crash_dir, report_facts(command, *service)));
  server.set_model(services_of(*service));
  signals.serving();
  server.set_state(ServerState::Ready);
  log_info("ready: " + flags.server.served_names.front() + ", plan " + service->model().planned.plan.fingerprint() +
           ", context " + std::to_string(service->engine->max_context()) + " tokens, " +
           (command.verify.level == "off" ? "unverified" : "verified (" + command.verify.level + ")"));
  wait_for_signal(signals, *service->engine, flags);
  if (service->engine->lost_rank()) return end_with_lost_rank(*service->engine, server);
  log_info("draining: no new requests, running ones have " + std::to_string(flags.drain_ms) + " ms");
  server.drain(flags.drain_ms);
  service->engine.reset();
  if (link != nullptr) link->finish();
  log_info("stopped");
  return Ok{};
}

Status serve_or_follow(ServeCommand& command, const CliContext& context, int& exit_code) {
  PLUMB_TRY_STATUS(finish_serve_options(command.serve));
  PLUMB_TRY(RankGroup group, join_ranks(command.model, command.ranks, context));
  if (group.ended)
    exit_code = *group.ended;
  else if (group.follows())
    exit_code = follow(command, context, group);
  else
    return serve(command, context, group);
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
  add_rank_options(*sub, command->model, command->ranks);
  add_serve_options(*sub, command->serve);
  sub->callback([sub, command, &context, &exit_code] {
    command->configuration = configuration_text(*sub, context);
    if (Status status = serve_or_follow(*command, context, exit_code); !status) exit_code = report(status.error());
  });
}

}  // namespace plumb

#include "cli/serve_options.h"

#include <CLI/CLI.hpp>
#include <fstream>
#include <limits>

#include "base/log.h"
#include "cli/value_checks.h"

namespace plumb {
namespace {

constexpr int kMost = std::numeric_limits<int>::max();

void add_listening(CLI::App& sub, HttpOptions& http) {
  sub.add_option("--host", http.host, "Address to listen on; empty: all");
  sub.add_option("--port", http.port, "Port; 0: any free one, shown in the log");
  sub.add_option("--unix-socket", http.unix_socket, "Also listen on this path");
  sub.add_option("--tls-cert", http.tls_cert, "Certificate chain (PEM): the port speaks HTTPS");
  sub.add_option("--tls-key", http.tls_key, "Its private key (PEM)");
  sub.add_option("--prefix", http.prefix, "Serve every path under this prefix too")->check(url_prefix());
  sub.add_option("--cors-origin", http.cors_origin, "Access-Control-Allow-Origin; empty: no CORS headers")
      ->check(header_value());
  sub.add_option("--io-threads", http.io_threads, "Threads that hold the connections; 0: one for every four cores")
      ->check(CLI::Range(0, 64));
  sub.add_option("--max-connections", http.max_connections, "Open sockets")->check(CLI::Range(1, 1'000'000));
  sub.add_option("--max-body-bytes", http.max_body_bytes, "Largest request body");
  sub.add_option("--idle-timeout-ms", http.idle_timeout_ms, "A connection without a request is closed after that long")
      ->check(CLI::Range(1, kMost));
  sub.add_option("--head-timeout-ms", http.head_timeout_ms, "For a request's head to arrive")
      ->check(CLI::Range(1, kMost));
  sub.add_option("--body-timeout-ms", http.body_timeout_ms, "For its body")->check(CLI::Range(1, kMost));
  sub.add_option("--write-timeout-ms", http.write_timeout_ms, "A client that takes no byte for so long is dropped")
      ->check(CLI::Range(1, kMost));
  sub.add_option("--keepalive-ms", http.sse_keepalive_ms, "A silent stream sends a comment this often")
      ->check(CLI::Range(1, kMost));
}

void add_access(CLI::App& sub, ServeFlags& f) {
  sub.add_option("--api-key", f.api_key, "Key that requests must carry; better given as PLUMB_API_KEY")
      ->check(plain_text());
  sub.add_option("--api-key-file", f.api_key_file,
                 "Keys of several clients: lines of NAME KEY [requests=N] [priority=N]");
  sub.add_option("--admin-key", f.server.admin_key, "Guards /metrics, /plan, /verification and /abort_request")
      ->check(plain_text());
  sub.add_option("--admin-key-file", f.admin_key_file, "The same from a file's first line");
}

void add_logging(CLI::App& sub, ServeFlags& f) {
  sub.add_option("--log-format", f.log_format, "text or json")->check(CLI::IsMember({"text", "json"}));
  sub.add_option("--log-level", f.log_level, "debug, info, warn, error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}));
  sub.add_flag("--no-access-log", f.no_access_log, "No line for each request");
  sub.add_option("--trace-file", f.server.trace_file, "Append an OpenTelemetry span (OTLP JSON) for each request");
  sub.add_flag("--vllm-metrics", f.server.vllm_metrics, "Also export the vllm: names that dashboards ask for");
  sub.add_option("--crash-dir", f.crash_dir, "Folder for a report when the process crashes");
}

Result<std::string> first_line(const std::string& path, const char* flag) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) || line.empty())
    return Error{Code::Usage, std::string(flag) + " " + path, "the file can't be read or its first line is empty", {}};
  return line;
}

Status read_keys(ServeFlags& f) {
  if (!f.api_key_file.empty()) {
    PLUMB_TRY(f.server.keys, read_key_file(f.api_key_file));
  }
  if (!f.api_key.empty()) f.server.keys.push_back({.name = "api-key", .secret = f.api_key});
  if (f.admin_key_file.empty()) return Ok{};
  if (!f.server.admin_key.empty())
    return Error{Code::Usage, "--admin-key and --admin-key-file", "there is one administrator's key", {"one of them"}};
  PLUMB_TRY(f.server.admin_key, first_line(f.admin_key_file, "--admin-key-file"));
  return Ok{};
}

}  // namespace

void add_serve_options(CLI::App& sub, ServeFlags& f) {
  add_listening(sub, f.server.http);
  add_access(sub, f);
  sub.add_option("--served-model-name", f.server.served_names, "Names clients may use; default: the model's own")
      ->check(plain_text());
  sub.add_flag("--accept-any-model", f.server.accept_any_model, "Serve requests that name another model");
  sub.add_flag("--allow-chat-template", f.server.allow_chat_template,
               "Let requests bring a chat_template of their own");
  sub.add_flag("--strict-fields", f.server.strict_fields, "Refuse unknown request fields");
  sub.add_flag("--generate-endpoint", f.server.generate_endpoint, "Offer POST /generate, in SGLang's form");
  sub.add_flag("--match-special-tokens", f.server.match_special_in_content,
               "Let message text make control tokens, as Hugging Face does");
  sub.add_option("--reasoning-field", f.reasoning_field, "Where thinking goes: reasoning_content, reasoning, both")
      ->check(CLI::IsMember({"reasoning_content", "reasoning", "both"}));
  sub.add_option("--request-timeout-ms", f.server.request_timeout_ms,
                 "Longest a request may take; 0: as long as it asks for")
      ->check(CLI::Range(0, kMost));
  sub.add_option("--drain-ms", f.drain_ms, "How long running requests may take after SIGTERM")
      ->check(CLI::Range(0, kMost));
  sub.add_option("--stuck-exit-ms", f.stuck_exit_ms,
                 "A step that is stuck for so long after it was noticed ends the process (exit code 5); 0: never")
      ->check(CLI::Range(0, kMost));
  sub.add_flag("--no-web", f.no_web, "No web page at /");
  add_logging(sub, f);
}

Status finish_serve_options(ServeFlags& f) {
  const auto level = f.log_level == "debug"   ? LogLevel::Debug
                     : f.log_level == "warn"  ? LogLevel::Warn
                     : f.log_level == "error" ? LogLevel::Error
                                              : LogLevel::Info;
  log_setup(level, f.log_format == "json" ? LogFormat::Json : LogFormat::Text);
  f.server.reasoning_field = f.reasoning_field == "both"        ? ReasoningField::Both
                             : f.reasoning_field == "reasoning" ? ReasoningField::Reasoning
                                                                : ReasoningField::ReasoningContent;
  f.server.access_log = !f.no_access_log;
  f.server.web = !f.no_web;
  if (f.server.http.tls_cert.empty() != f.server.http.tls_key.empty())
    return Error{Code::Usage, "--tls-cert and --tls-key", "each needs the other", {}};
  return read_keys(f);
}

}  // namespace plumb

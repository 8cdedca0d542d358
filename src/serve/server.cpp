#include "serve/server.h"

#include "base/check.h"
#include "serve/api_error.h"
#include "serve/context.h"
#include "serve/handlers.h"
#include "serve/request_log.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace plumb {

namespace {

constexpr int kFlushMs = 2000;  // after draining, for last bytes to leave

HttpHandlers handlers_for(ServeContext& context) {
  return {.on_request = [&context](const std::shared_ptr<Exchange>& exchange) { route(context, exchange); },
          .on_done =
              [&context](const HttpAccess& access) {
                const double seconds = static_cast<double>(access.duration_us) * 1e-6;
                const std::string_view route = route_name(access.path);
                context.metrics.http_request(route, access.status, seconds);
                if (context.options.access_log) log_request(access, route);
                if (context.traces) context.traces->write(access, route);
              },
          .make_error = transport_error};
}

}  // namespace

struct Server::Impl {
  explicit Impl(ServerOptions options)
      : context(std::move(options)), http(context.options.http, handlers_for(context)) {}

  // Afterwards nothing here touches the model any more.
  void end(int grace_ms) {
    http.stop(grace_ms);
    context.pool.reset();
  }

  ServeContext context;
  std::unique_ptr<const ServedModel> model{};
  std::unique_ptr<const std::string> verification{};
  HttpServer http;  // last, so that it ends before what its handlers use
};

Server::Server(ServerOptions options) {
  PLUMB_CHECK(!options.served_names.empty(), "a server needs a name to serve under");
  impl_ = std::make_unique<Impl>(std::move(options));
  impl_->context.connections = [http = &impl_->http] { return http->connections(); };
}

Server::~Server() { stop(); }

Status Server::start() {
  if (const std::string& path = impl_->context.options.trace_file; !path.empty()) {
    PLUMB_TRY(impl_->context.traces, TraceFile::open(path));
  }
  return impl_->http.start();
}
uint16_t Server::port() const { return impl_->http.port(); }

void Server::set_model(ModelServices services) {
  PLUMB_CHECK(impl_->model == nullptr, "the model is set once");
  auto model = std::make_unique<ServedModel>();
  const auto token = [&](std::string_view text) { return services.tokenizer->token_id(text).value_or(-1); };
  for (int i = 0; i < kMarkupTags; ++i) {
    model->tags.ids[static_cast<size_t>(i)] = token(tag_text(static_cast<MarkupTag>(i)));
  }
  model->calls = services.chat_template != nullptr && services.chat_template->mentions("<tool_call>") &&
                 services.chat_template->mentions("<arg_key>");
  model->limits = {.vocab_size = services.vocab_size,
                   .max_context = services.engine->max_context(),
                   .default_temperature = services.default_temperature,
                   .default_top_p = services.default_top_p,
                   .default_top_k = services.default_top_k,
                   .allow_chat_template = impl_->context.options.allow_chat_template,
                   .strict_fields = impl_->context.options.strict_fields};
  model->grammars = std::make_unique<GrammarCache>(*services.tokenizer, services.vocab_size);
  model->services = std::move(services);
  impl_->model = std::move(model);
  impl_->context.model.store(impl_->model.get(), std::memory_order_release);
}

void Server::set_verification(std::string json) {
  PLUMB_CHECK(impl_->verification == nullptr, "the receipt is set once");
  impl_->verification = std::make_unique<const std::string>(std::move(json));
  impl_->context.verification.store(impl_->verification.get(), std::memory_order_release);
}

void Server::set_state(ServerState state) { impl_->context.state.store(state, std::memory_order_release); }
ServerState Server::state() const { return impl_->context.state.load(std::memory_order_acquire); }

void Server::drain(int64_t timeout_ms) {
  set_state(ServerState::Draining);
  if (impl_->model) impl_->model->services.engine->drain(timeout_ms);
  impl_->end(kFlushMs);
}

void Server::stop() { impl_->end(0); }

}  // namespace plumb

// What the handlers share: options, the model once it is there, the pool, the metrics.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/thread_pool.h"
#include "engine/engine_api.h"
#include "serve/choice_text.h"
#include "serve/grammar_cache.h"
#include "serve/metrics.h"
#include "serve/openai_request.h"
#include "serve/request_log.h"
#include "serve/running_requests.h"
#include "serve/server.h"

namespace plumb {

// ModelServices and what follows from them; immutable once published, but for the cache, which guards itself.
struct ServedModel {
  ModelServices services{};
  TagIds tags{};
  bool calls = false;  // the template writes calls as this server reads them
  RequestLimits limits{};
  std::unique_ptr<GrammarCache> grammars{};
};

struct ServeContext {
  explicit ServeContext(ServerOptions given)
      : options(std::move(given)),
        access(options.keys, options.admin_key),
        pool(std::make_unique<JobPool>(options.pool_threads, static_cast<size_t>(options.pool_queue))) {}

  const ServerOptions options;
  const AccessControl access;
  std::unique_ptr<TraceFile> traces{};  // opened before the server starts
  std::atomic<ServerState> state{ServerState::Loading};
  std::atomic<const ServedModel*> model{nullptr};  // published once, owned by the Server
  std::atomic<const std::string*> verification{nullptr};
  Metrics metrics{};
  RunningRequests running{};
  std::function<int()> connections{};  // open ones, for the metrics; set before the server starts
  std::unique_ptr<JobPool> pool;       // gone once the server has stopped, after its last job
};

}  // namespace plumb

#include "engine/probe.h"

#include <algorithm>

#include "engine/step.h"
#include "model/buffers.h"

namespace plumb {
namespace {

// Fills activations and the first `pages` pages of every layer.
void fill(const Forward& forward, int64_t pages, int byte) {
  Executor& executor = forward.executor;
  const Memory& memory = executor.memory();
  const std::vector<std::byte> piece(size_t{1} << 20, static_cast<std::byte>(byte));
  const auto put = [&](std::byte* to, int64_t bytes) {
    for (int64_t done = 0; done < bytes; done += static_cast<int64_t>(piece.size()))
      memory.upload(to + done, piece.data(), static_cast<size_t>(std::min<int64_t>(bytes - done, int64_t{1} << 20)),
                    executor.stream());
  };
  put(forward.buffers.storage.get(), forward_buffer_bytes(forward.config, forward.buffers.limits));
  const int layers = forward.config.num_hidden_layers + (forward.weights.has_mtp ? 1 : 0);
  for (int layer = 0; layer < layers; ++layer) {
    const KvView view = forward.cache.view(layer);
    put(view.latent, pages * view.geometry.latent_page_bytes());
    if (view.index_keys != nullptr) put(view.index_keys, pages * view.geometry.index_page_bytes());
  }
  memory.synchronise(executor.stream());
}
constexpr int kNanByte = 0xff;  // NaN in every format, -1 as an index: rows that are read before they are written show

// Pages that the checks need: two sequences past sparse selection, and a batch of short ones.
int64_t check_pages(const SelfCheckInput& input) {
  const int page = input.forward.cache.geometry().page_tokens;
  const int64_t wanted =
      2 * pages_for(std::max(input.forward.config.index_topk + 160, 4 * page), page) + input.options.max_running;
  return std::min(wanted, input.forward.cache.pages());
}

}  // namespace

std::unique_ptr<Probe> Probe::start(const SelfCheckInput& input, const std::function<void(EngineOptions&)>& change,
                                    std::string& problem) {
  auto probe = std::unique_ptr<Probe>(new Probe(input.forward.executor));
  EngineOptions options = input.options;
  options.prefix_cache = false;
  options.draft_tokens = 0;
  options.guard = {.sentinels = true, .log = false};
  options.page_limit = check_pages(input);
  if (change) change(options);
  const int64_t pages = usable_pages(options, input.forward);
  options.max_context = static_cast<int>(
      std::min<int64_t>(effective_context(options, input.forward), pages * input.forward.cache.geometry().page_tokens));
  options.observer = [raw = probe.get()](const StepView& step) { raw->see(step); };
  fill(input.forward, std::min(pages, check_pages(input)), kNanByte);
  Result<std::unique_ptr<Engine>> engine = Engine::start(input.forward, options);
  if (!engine) {
    problem = engine.error().to_string();
    return nullptr;
  }
  probe->engine_ = *std::move(engine);
  return probe;
}

void Probe::clean_up(const SelfCheckInput& input) { fill(input.forward, check_pages(input), 0); }

ProbeLogits Probe::logits_of(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  return logits_[request_id];
}

void Probe::see(const StepView& step) {
  const std::lock_guard lock(mutex_);
  std::vector<std::byte> storage;
  const Tensor rows = executor_->to_host(step.output.logits, storage);
  for (const BatchItem& item : step.items)
    for (int row = item.first_logit; row < item.count; ++row) {
      const float* logits = rows.row_f32(item.output_row + row - item.first_logit);
      logits_[item.sequence->request.request_id][item.begin + row] = {logits, logits + rows.dim(1)};
    }
}

}  // namespace plumb

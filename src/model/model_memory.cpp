#include "model/model_memory.h"

#include <algorithm>
#include <cstdio>
#include <map>

namespace plumb {
namespace {

std::string size_text(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30));
  return text;
}

// Bytes held for one weight: its re-arrangement, or its place in the file.
class WeightBytes {
 public:
  WeightBytes(const PlanInput& in, const Plan& plan) : in_(in), plan_(plan) {}
  void add(const WeightSource& w, SiteId site = -1) {
    if (!w) return;
    const EncodedMatrix matrix{.format = w.format, .n = w.n, .k = w.k};
    int64_t bytes = encoded_data_bytes(w.format, w.n, w.k) + encoded_scale_bytes(w.format, w.n, w.k);
    if (site >= 0)
      for (const Choice& choice : plan_.sites[static_cast<size_t>(site)].choices) {
        const Layout layout = choice.kernel->contract.weight_layout;
        const Conversion* c = layout == Layout::RowMajor ? nullptr : in_.registry.conversion(layout, w.format);
        if (c != nullptr) bytes = static_cast<int64_t>(c->bytes(matrix));
      }
    by_format_[w.format.to_string()] += bytes;
  }
  void add(const MlpSources& m, SiteId site) {
    for (const WeightSource* w : {&m.gate_proj, &m.up_proj, &m.down_proj}) add(*w, site);
  }
  void add(const LayerSources& w, const LayerSites& s);
  const std::map<std::string, int64_t>& by_format() const { return by_format_; }

 private:
  const PlanInput& in_;
  const Plan& plan_;
  std::map<std::string, int64_t> by_format_{};
};

void WeightBytes::add(const LayerSources& w, const LayerSites& s) {
  for (const WeightSource* v : {&w.input_layernorm, &w.post_attention_layernorm, &w.q_a_layernorm, &w.kv_a_layernorm,
                                &w.q_a_proj_bias, &w.kv_a_proj_bias, &w.o_proj_bias, &w.e_score_correction_bias})
    add(*v);
  add(w.q_a_proj, s.q_a);
  add(w.q_b_proj, s.q_b);
  add(w.kv_a_proj_with_mqa, s.kv_a);
  add(w.kv_b_proj, s.attend);
  add(w.o_proj, s.o);
  add(w.gate, s.router);
  if (w.indexer) {
    add(w.indexer->wq_b, s.wq_b);
    add(w.indexer->wk, s.wk);
    add(w.indexer->weights_proj, s.weights_proj);
  }
  if (w.mlp) add(*w.mlp, s.mlp);
  if (w.shared_experts) add(*w.shared_experts, s.mlp);
  for (const MlpSources& expert : w.experts) add(expert, s.moe);
}

int64_t add_weights(const PlanInput& in, PlannedModel& out) {
  WeightBytes bytes(in, out.plan);
  bytes.add(in.map.embed_tokens, out.sites.embed);
  if (!in.config.tie_word_embeddings) bytes.add(in.map.lm_head, out.sites.lm_head);
  bytes.add(in.map.norm);
  for (size_t i = 0; i < in.map.layers.size(); ++i) bytes.add(in.map.layers[i], out.sites.layers[i]);
  if (in.map.mtp) {
    bytes.add(in.map.mtp->layer, out.sites.layers.back());
    bytes.add(in.map.mtp->eh_proj, out.sites.eh_proj);
  }
  int64_t total = 0;
  for (const auto& [format, size] : bytes.by_format()) {
    out.plan.memory.emplace_back("weights " + format, size);
    total += size;
  }
  return total;
}

Error too_large(const std::string& what, int64_t needed, int64_t available, std::vector<std::string> works) {
  return {Code::Unsupported, what + " needs " + size_text(needed) + ", " + size_text(available) + " are there", "",
          std::move(works)};
}

int64_t pages_for(int64_t tokens, int page_tokens) { return (tokens + page_tokens - 1) / page_tokens; }

// Tokens of one sequence: asked for, or the model's own cut down to what the cache and the index scratch can hold.
Result<int> choose_context(const ModelConfig& config, const ModelPlanOptions& o, int64_t pages_that_fit) {
  if (o.max_context > config.max_position_embeddings)
    return Error{Code::Unsupported,
                 "--context " + std::to_string(o.max_context) + " is more than the model has positions",
                 "config.json: max_position_embeddings is " + std::to_string(config.max_position_embeddings),
                 {"--context " + std::to_string(config.max_position_embeddings) + " or less"}};
  const int64_t fits = std::min(pages_that_fit, o.pages > 0 ? o.pages : pages_that_fit) * o.page_tokens;
  const int64_t wanted = o.max_context > 0 ? o.max_context : config.max_position_embeddings;
  if (fits >= wanted) return static_cast<int>(wanted);
  if (o.max_context > 0 || fits <= 0)
    return Error{Code::Unsupported,
                 "a context of " + std::to_string(wanted) + " tokens does not fit",
                 "the KV cache has room for " + std::to_string(fits) + " tokens",
                 {"--context " + std::to_string(fits), "--kv fp8", "more --pages if they were limited"}};
  return static_cast<int>(fits);
}

}  // namespace

Status fit_memory(const PlanInput& input, const ModelPlanOptions& options, PlannedModel& out) {
  constexpr int64_t kUnlimited = int64_t{1} << 62;
  constexpr int kUsualTokens = 4096;  // a sequence's share of the cache when nobody says how long they get
  const ModelConfig& config = input.config;
  const int64_t weights = add_weights(input, out);
  const int64_t device_bytes = input.device.memory_bytes;
  // A tenth stays for the system, tokenizer, requests and files in flight.
  const int64_t usable = device_bytes > 0 ? device_bytes / 10 * 9 : kUnlimited;
  if (weights > usable) return too_large("the weights", weights, usable, {"a machine with more memory"});
  out.limits = {.rows = options.max_rows,
                .sequences = options.max_sequences,
                .page_tokens = options.page_tokens,
                .mtp = out.with_mtp};
  out.limits.logit_rows = options.max_logit_rows > 0
                              ? std::min(options.max_logit_rows, options.max_rows)
                              : std::min(options.max_rows, options.max_sequences * (out.with_mtp ? 4 : 1));
  const int64_t page_bytes = KvCache::page_bytes(config, out.with_mtp, out.kv);
  const auto fixed = [&] {
    return weights + forward_buffer_bytes(config, out.limits) + static_cast<int64_t>(out.plan.workspace_bytes);
  };
  out.limits.context = std::min(config.max_position_embeddings, std::max(options.max_context, 1));
  const auto pages_that_fit = [&] { return std::max<int64_t>(usable - fixed(), 0) / page_bytes; };
  PLUMB_TRY(out.max_context, choose_context(config, options, pages_that_fit()));
  out.limits.context = out.max_context;
  const int64_t fit_pages = pages_that_fit();  // the buffers have grown with the context
  const int64_t one_sequence = pages_for(out.max_context, options.page_tokens);
  const int64_t usual = pages_for(std::min(out.max_context, kUsualTokens), options.page_tokens) * options.max_sequences;
  out.pages = options.pages > 0 ? options.pages : std::min(fit_pages, std::max(one_sequence, usual));
  if (out.pages > fit_pages || fit_pages == 0) {
    const int64_t needed = out.pages > kUnlimited / page_bytes ? kUnlimited : out.pages * page_bytes;
    return too_large(
        "the KV cache of " + std::to_string(out.pages) + " pages", needed, usable - fixed(),
        {"--pages " + std::to_string(fit_pages), "--kv fp8", "a shorter --context", "fewer --max-running"});
  }
  out.plan.memory.emplace_back("KV cache", out.pages * page_bytes);
  out.plan.memory.emplace_back("activations of a step", forward_buffer_bytes(config, out.limits));
  out.plan.memory.emplace_back("kernel workspace", static_cast<int64_t>(out.plan.workspace_bytes));
  out.plan.notes.push_back("the KV cache holds " + std::to_string(out.pages * options.page_tokens) +
                           " tokens: " + std::to_string(out.pages / one_sequence) + " sequences of " +
                           std::to_string(out.max_context) + " tokens");
  if (device_bytes > 0)
    out.plan.notes.push_back("memory has room for " + std::to_string(fit_pages * options.page_tokens) +
                             " tokens of KV cache");
  return Ok{};
}

}  // namespace plumb

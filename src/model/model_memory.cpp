#include "model/model_memory.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "model/split.h"
#include "model/upload.h"

namespace plumb {
namespace {

std::string size_text(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30));
  return text;
}

constexpr int64_t kPage = 4096;
int64_t page_rounded(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// What one of the ranks holds: each weight where its kernels read it, and norms and biases decoded to f32.
class WeightBytes {
 public:
  WeightBytes(const PlanInput& in, const Plan& plan) : in_(in), plan_(plan) {}
  void add(const WeightSource& w, SiteId site);
  void add_vector(const WeightSource& w) {
    if (w) vectors_ += page_rounded(w.n * w.k * 4);
  }
  void add(const MlpSources& m, SiteId site) {
    for (const WeightSource* w : {&m.gate_proj, &m.up_proj, &m.down_proj}) add(*w, site);
  }
  void add(const LayerSources& w, const LayerSites& s);
  const std::map<std::string, int64_t>& by_format() const { return by_format_; }
  int64_t vectors() const { return vectors_; }
  std::vector<ConversionLine> conversions() const;

 private:
  const PlanInput& in_;
  const Plan& plan_;
  std::map<std::string, int64_t> by_format_{};
  std::map<std::pair<Layout, std::string>, ConversionLine> conversions_{};
  int64_t vectors_ = 0;
};

void WeightBytes::add(const WeightSource& w, SiteId site) {
  if (!w) return;
  const int64_t encoded = encoded_data_bytes(w.format, w.n, w.k) + encoded_scale_bytes(w.format, w.n, w.k);
  int64_t bytes = encoded;
  if (w.format.global_scale) bytes += 4;
  for (const Choice& choice : plan_.sites[static_cast<size_t>(site)].choices) {
    const Layout layout = choice.kernel->contract.weight_layout;
    const Conversion* c = layout == Layout::RowMajor ? nullptr : in_.registry.conversion(layout, w.format);
    if (c == nullptr) continue;
    bytes = static_cast<int64_t>(c->bytes({.format = w.format, .n = w.n, .k = w.k}));
    // Some columns of a tensor lie in the file with gaps: what the reference reads is a copy, on a host beside the
    // kernels' own.
    if (w.part_of_rows() && !in_.device.is_gpu()) bytes += encoded;
    ConversionLine& line = conversions_[{layout, w.format.to_string()}];
    line.to = layout;
    line.format = w.format;
    line.rounding = c->rounding;
    ++line.weights;
    line.bytes += bytes;
    break;  // the plan has one layout a place
  }
  by_format_[w.format.to_string()] += bytes;
}

void WeightBytes::add(const LayerSources& w, const LayerSites& s) {
  for (const WeightSource* v : {&w.input_layernorm, &w.post_attention_layernorm, &w.q_a_layernorm, &w.kv_a_layernorm,
                                &w.q_a_proj_bias, &w.kv_a_proj_bias, &w.o_proj_bias, &w.e_score_correction_bias})
    add_vector(*v);
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
    add_vector(w.indexer->k_norm);
    add_vector(w.indexer->k_norm_bias);
  }
  if (w.mlp) add(*w.mlp, s.mlp);
  if (w.shared_experts) add(*w.shared_experts, s.mlp);
  for (const MlpSources& expert : w.experts) add(expert, s.moe);
}

std::vector<ConversionLine> WeightBytes::conversions() const {
  std::vector<ConversionLine> lines;
  for (const auto& [key, line] : conversions_) lines.push_back(line);
  return lines;
}

WeightBytes count_weights(const PlanInput& in, const PlannedModel& planned, const Ranks& ranks) {
  const WeightMap map = share_of(in.map, ranks, 0);
  WeightBytes bytes(in, planned.plan);
  const ModelSites& sites = planned.sites;
  bytes.add(map.embed_tokens, sites.embed);
  // A tied head is the embedding: the same bytes in the file, but a copy where its kernel reads a layout of its own.
  const Layout head =
      planned.plan.sites[static_cast<size_t>(sites.lm_head)].choices.front().kernel->contract.weight_layout;
  if (!in.config.tie_word_embeddings || head != Layout::RowMajor) bytes.add(map.lm_head, sites.lm_head);
  bytes.add_vector(map.norm);
  for (size_t i = 0; i < map.layers.size(); ++i) bytes.add(map.layers[i], sites.layers[i]);
  if (map.mtp) {
    bytes.add(map.mtp->layer, sites.layers.back());
    bytes.add(map.mtp->eh_proj, sites.eh_proj);
    for (const WeightSource* v : {&map.mtp->enorm, &map.mtp->hnorm, &map.mtp->shared_head_norm}) bytes.add_vector(*v);
  }
  return bytes;
}

int64_t sum(const std::vector<std::pair<std::string, int64_t>>& memory) {
  int64_t total = 0;
  for (const auto& [name, bytes] : memory) total += bytes;
  return total;
}

int64_t add_weights(const WeightBytes& bytes, Plan& plan) {
  for (const auto& [format, size] : bytes.by_format()) plan.memory.emplace_back("weights " + format, size);
  plan.memory.emplace_back("norms and biases f32", bytes.vectors());
  plan.conversions = bytes.conversions();
  return sum(plan.memory);
}

// The kernels of all places share it.
int64_t peer_bytes(const Plan& plan) {
  int64_t most = 0;
  for (const Site& site : plan.sites)
    for (const Choice& choice : site.choices) most = std::max(most, choice.kernel->contract.peer_bytes);
  return most;
}

// A machine of this kind and number that holds the weights and a little beside them.
std::vector<std::string> what_holds(const PlanInput& in, const PlannedModel& planned, int64_t usable) {
  std::vector<std::string> works;
  if (!in.device.is_gpu()) return {"a machine with more memory", "a checkpoint in a smaller format"};
  for (const int ranks : {2, 4, 8, 16}) {
    if (!check_split(in.config, in.map, {.count = ranks})) continue;
    const WeightBytes bytes = count_weights(in, planned, {.count = ranks});
    int64_t needed = bytes.vectors();
    for (const auto& [format, size] : bytes.by_format()) needed += size;
    if (needed > usable / 20 * 19) continue;
    works.push_back("--tp " + std::to_string(ranks) + " (" + size_text(needed) + " of weights on each of " +
                    std::to_string(ranks) + " devices)");
    break;
  }
  works.emplace_back("devices with more memory");
  works.emplace_back("a checkpoint in a smaller format");
  return works;
}

Error too_large(const std::string& what, int64_t needed, int64_t available, std::string why,
                std::vector<std::string> works) {
  return {Code::Unsupported, what + " needs " + size_text(needed) + ", " + size_text(available) + " are there",
          std::move(why), std::move(works)};
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
  if (o.max_context > 0 || fits <= 0) {
    std::vector<std::string> works;
    if (fits > 0) works.push_back("--context " + std::to_string(fits));
    if (o.kv != "fp8") works.emplace_back("--kv fp8");
    works.emplace_back(o.pages > 0 ? "more --pages" : "fewer --max-running");
    return Error{Code::Unsupported, "a context of " + std::to_string(wanted) + " tokens does not fit",
                 "the KV cache has room for " + std::to_string(std::max<int64_t>(fits, 0)) + " tokens", works};
  }
  return static_cast<int>(fits);
}

// Of the device's memory, what may be planned. On a host a tenth stays for the system, tokenizer, requests and files in
// flight; on a GPU the driver's context is a category of its own.
int64_t usable_bytes(const DeviceInfo& device, double asked) {
  const double share = asked > 0 ? asked : device.is_gpu() ? 0.95 : 0.9;
  return static_cast<int64_t>(static_cast<double>(device.memory_bytes) * share);
}

// What works instead of the pages that were asked for.
std::vector<std::string> fewer_pages(const ModelPlanOptions& options, int64_t fit_pages) {
  std::vector<std::string> works;
  if (fit_pages > 0) works.push_back("--pages " + std::to_string(fit_pages));
  if (options.kv != "fp8") works.emplace_back("--kv fp8");
  works.insert(works.end(), {"a shorter --context", "fewer --max-running", "fewer --max-batch-tokens"});
  return works;
}

int rows_with_logits(const ModelPlanOptions& options, bool with_mtp) {
  if (options.max_logit_rows > 0) return std::min(options.max_logit_rows, options.max_rows);
  return std::min(options.max_rows, options.max_sequences * (with_mtp ? 4 : 1));
}

}  // namespace

Status fit_memory(const PlanInput& input, const ModelPlanOptions& options, PlannedModel& out) {
  constexpr int64_t kUnlimited = int64_t{1} << 62;
  constexpr int kUsualTokens = 4096;  // a sequence's share of the cache when nobody says how long they get
  // Context, code and library state of a process on a GPU: assumed, not measured for each card.
  constexpr int64_t kContextBytes = int64_t{768} << 20;
  const ModelConfig& config = input.config;
  Plan& plan = out.plan;
  const int64_t device_bytes = input.device.memory_bytes;
  const int64_t usable = device_bytes > 0 ? usable_bytes(input.device, options.memory_fraction) : kUnlimited;
  const WeightBytes counted = count_weights(input, out, ranks_of(options));
  const int64_t weights = add_weights(counted, plan);
  if (input.device.is_gpu()) plan.memory.emplace_back("driver context (assumed)", kContextBytes);
  if (const int64_t bytes = peer_bytes(plan); bytes > 0) plan.memory.emplace_back("what ranks send each other", bytes);
  const int64_t resident = sum(plan.memory);
  const std::string bound = input.device.memory_bound.empty() ? "" : "bounded by " + input.device.memory_bound;
  if (resident > usable)
    return too_large(options.tp > 1 ? "each device's share of the weights" : "the model's weights", weights,
                     usable - (resident - weights), bound, what_holds(input, out, usable - (resident - weights)));
  out.limits = {.rows = options.max_rows,
                .sequences = options.max_sequences,
                .page_tokens = options.page_tokens,
                .mtp = out.with_mtp,
                .ranks = options.tp};
  if (out.sites.logits_gather >= 0)
    out.limits.vocabulary_share = plan.sites[static_cast<size_t>(out.sites.lm_head)].decl.call.n;
  out.limits.logit_rows = rows_with_logits(options, out.with_mtp);
  const KvCache::PageBytes page = KvCache::page_bytes_of(config, out.with_mtp, out.kv);
  const int64_t page_bytes = page.latent + page.index_keys;
  const auto fixed = [&] {
    return resident + forward_buffer_bytes(config, out.limits) + static_cast<int64_t>(plan.workspace_bytes);
  };
  out.limits.context = std::min(config.max_position_embeddings, std::max(options.max_context, 1));
  const auto pages_that_fit = [&] { return std::max<int64_t>(usable - fixed(), 0) / page_bytes; };
  if (pages_that_fit() == 0)
    return too_large("weights and buffers leave no room for a KV cache: a page more than them", fixed() + page_bytes,
                     usable, bound, what_holds(input, out, usable));
  PLUMB_TRY(out.max_context, choose_context(config, options, pages_that_fit()));
  out.limits.context = out.max_context;
  // The buffers grow with the context, so that what fits shrinks a little; a context that was asked for stays.
  int64_t fit_pages = pages_that_fit();
  if (options.max_context == 0 && fit_pages * options.page_tokens < out.max_context) {
    PLUMB_TRY(out.max_context, choose_context(config, options, fit_pages));
    out.limits.context = out.max_context;
    fit_pages = pages_that_fit();
  }
  const int64_t one_sequence = pages_for(out.max_context, options.page_tokens);
  const int64_t usual = pages_for(std::min(out.max_context, kUsualTokens), options.page_tokens) * options.max_sequences;
  out.pages = options.pages > 0 ? options.pages : std::min(fit_pages, std::max(one_sequence, usual));
  if (out.pages > fit_pages || fit_pages == 0) {
    const int64_t needed = out.pages > kUnlimited / page_bytes ? kUnlimited : out.pages * page_bytes;
    return too_large("the KV cache of " + std::to_string(out.pages) + " pages", needed,
                     std::max<int64_t>(usable - fixed(), 0), bound, fewer_pages(options, fit_pages));
  }
  plan.memory.emplace_back("KV cache", out.pages * page.latent);
  plan.memory.emplace_back("indexer keys", out.pages * page.index_keys);
  plan.memory.emplace_back("activations of a step", forward_buffer_bytes(config, out.limits));
  plan.memory.emplace_back("kernel workspace", static_cast<int64_t>(plan.workspace_bytes));
  if (input.device.is_gpu()) plan.memory.emplace_back("graphs of recorded steps (not counted)", 0);
  plan.host_memory.emplace_back("angles of positions, as they are used", angle_table_bytes(config, out.limits));
  plan.host_memory.emplace_back("checkpoint, mapped and reclaimable", input.checkpoint_bytes);
  if (input.device.is_gpu())
    plan.host_memory.emplace_back("page-locked staging of weights", Upload::kBuffers * Upload::kBuffer * options.tp);
  plan.fit = {.devices = options.tp,
              .device_bytes = device_bytes,
              .usable = device_bytes > 0 ? usable : 0,
              .bound = input.device.memory_bound,
              .planned = sum(plan.memory),
              .cache_tokens = out.pages * options.page_tokens,
              .cache_tokens_most = device_bytes > 0 ? fit_pages * options.page_tokens : 0,
              .context = out.max_context,
              .sequences = out.pages / one_sequence};
  plan.notes.push_back("the KV cache holds " + std::to_string(plan.fit.cache_tokens) +
                       " tokens: " + std::to_string(plan.fit.sequences) + " sequences of " +
                       std::to_string(out.max_context) + " tokens");
  if (device_bytes > 0) {
    const int64_t most = plan.fit.cache_tokens_most;
    plan.notes.push_back("memory has room for " + std::to_string(most) + " tokens of KV cache (--pages " +
                         std::to_string(fit_pages) + "): " + std::to_string(most / out.max_context) + " sequences of " +
                         std::to_string(out.max_context) + " tokens, or " +
                         std::to_string(most / std::min(out.max_context, 8192)) + " of " +
                         std::to_string(std::min(out.max_context, 8192)));
  }
  if (out.max_context < config.max_position_embeddings && options.max_context == 0)
    plan.notes.push_back("the context is cut from the model's " + std::to_string(config.max_position_embeddings) +
                         " tokens to what fits; " + (options.kv == "fp8" ? std::string() : "--kv fp8, ") +
                         "a larger --tp or a smaller --max-batch-tokens gives more");
  return Ok{};
}

}  // namespace plumb

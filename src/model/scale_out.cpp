#include "model/scale_out.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <sstream>
#include <utility>

#include "model/split.h"
#include "tensor/dequant.h"

namespace plumb {
namespace {

struct Rates {
  const char* device;
  double bytes_per_s, flops;
  Link inside, across;
};
// Memory and products: 90 % and 80 % of the data sheet, or what was measured (H200). Links: what NCCL takes for a few
// kilobytes, and the data sheet's rate; between machines 400 Gbit/s for each GPU.
constexpr std::array kRates{Rates{"h200", 4.29e12, 780e12, {22, 450e9}, {30, 50e9}},
                            Rates{"h100", 3.0e12, 780e12, {22, 450e9}, {30, 50e9}},
                            Rates{"b200", 7.2e12, 1800e12, {22, 900e9}, {30, 50e9}},
                            Rates{"rtx-pro-6000", 1.6e12, 400e12, {22, 55e9}, {30, 50e9}},
                            Rates{"rtx-5090", 1.6e12, 170e12, {22, 55e9}, {30, 50e9}}};

constexpr double kCacheShare = 0.9;  // of the memory beside the weights; the rest is activations and the driver's

// Bytes and parameters of a whole model, without the next-n layer.
struct Amounts {
  struct Part {
    double bytes = 0, parameters = 0;
    void add(const WeightSource& w) {
      if (!w) return;
      bytes += static_cast<double>(encoded_data_bytes(w.format, w.n, w.k) + encoded_scale_bytes(w.format, w.n, w.k));
      parameters += static_cast<double>(w.n * w.k);
    }
  };
  Part divided{}, alike{}, head{}, embedding{}, experts{};
  double layers = 0, sparse = 0, full = 0;      // numbers of layers
  double latent_bytes = 0, index_bytes = 0;     // of a token, all layers
  double attention_flops = 0, index_flops = 0;  // of a token: at index_topk positions; for each position before it
  int64_t topk = 0, hidden = 0, routed = 0, chosen = 0;

  double cache_bytes() const { return latent_bytes + index_bytes; }
  // Of the routed experts' weights, what so many rows choose at least once: uniformly.
  double touched(double rows) const {
    return 1 - std::pow(1 - static_cast<double>(chosen) / static_cast<double>(routed), rows);
  }
};

Amounts amounts_of(const ModelConfig& config, const WeightMap& map, const KvGeometry& kv) {
  Amounts a;
  a.head.add(map.lm_head);
  a.embedding.add(map.embed_tokens);
  for (const LayerSources& layer : map.layers) {
    for (const WeightSource* w :
         {&layer.q_a_proj, &layer.q_b_proj, &layer.kv_a_proj_with_mqa, &layer.kv_b_proj, &layer.o_proj, &layer.gate})
      (split_of(w->name) == Split::Replicated ? a.alike : a.divided).add(*w);
    if (layer.indexer)
      for (const WeightSource* w : {&layer.indexer->wq_b, &layer.indexer->wk, &layer.indexer->weights_proj})
        a.alike.add(*w);
    const auto add = [](Amounts::Part& part, const MlpSources& mlp) {
      for (const WeightSource* w : {&mlp.gate_proj, &mlp.up_proj, &mlp.down_proj}) part.add(*w);
    };
    if (layer.mlp) add(a.divided, *layer.mlp);
    if (layer.shared_experts) add(a.divided, *layer.shared_experts);
    for (const MlpSources& expert : layer.experts) add(a.experts, expert);
    ++a.layers;
    if (!layer.experts.empty()) ++a.sparse;
    if (layer.indexer) ++a.full;
  }
  a.topk = config.index_topk;
  a.hidden = config.hidden_size;
  a.routed = std::max(config.n_routed_experts, 1);
  a.chosen = config.num_experts_per_tok;
  a.latent_bytes = static_cast<double>(kv.latent_row_bytes()) * a.layers;
  a.index_bytes = static_cast<double>(kv.index_page_bytes()) / kv.page_tokens * a.full;
  // Scores against the latent and its rotated part, and the sum of latents: two operations a product.
  a.attention_flops = a.layers * 2 * config.num_attention_heads * (2.0 * config.kv_lora_rank + config.qk_rope_head_dim);
  a.index_flops = a.full * 2 * config.index_n_heads * config.index_head_dim;
  return a;
}

struct Shape {
  std::string name;
  int tp = 1, ep = 1, stages = 1;  // GPUs that divide attention; that divide the experts; one after another
  bool by_data = false;            // each GPU has sequences of its own
  int gpus() const { return (by_data ? ep : tp) * stages; }
};

// Seconds of one decoding step, by what takes them.
struct StepTime {
  double weights = 0, experts = 0, latents = 0, index_keys = 0, arithmetic = 0, links = 0;
  double memory() const { return weights + experts + latents + index_keys; }
  double total() const { return std::max(memory(), arithmetic) + links; }
  std::string largest() const {
    std::vector<std::pair<double, std::string>> parts{{experts, "experts"},
                                                      {latents, "latents"},
                                                      {index_keys, "index keys"},
                                                      {weights, "other weights"},
                                                      {links, "links"}};
    if (arithmetic > memory()) parts = {{arithmetic, "arithmetic"}, {links, "links"}};
    const auto& [seconds, name] = *std::ranges::max_element(parts);
    char text[64];
    std::snprintf(text, sizeof text, "%s %.0f %%", name.c_str(), seconds / total() * 100);
    return text;
  }
};

class Calculator {
 public:
  Calculator(const Amounts& amounts, const Machine& machine, const ScaleQuestion& question)
      : a_(amounts), machine_(machine), question_(question) {}

  ScaleLayout layout(const Shape& s) const;

 private:
  double weight_bytes(const Shape& s) const {
    const double fixed = a_.alike.bytes + (a_.divided.bytes + a_.head.bytes + a_.embedding.bytes) / s.tp;
    return (fixed + a_.experts.bytes / s.ep) / s.stages;
  }
  StepTime step(const Shape& s, double sequences) const;
  double link_seconds(const Shape& s, double rows) const;
  double prefill_seconds(const Shape& s) const;

  const Amounts& a_;
  const Machine& machine_;
  const ScaleQuestion& question_;
};

// All layers, `rows` of a GPU: what the shape's GPUs send each other.
double Calculator::link_seconds(const Shape& s, double rows) const {
  const auto hidden = static_cast<double>(a_.hidden);
  double seconds = 0;
  if (!s.by_data && s.tp > 1)  // two sums a layer, bf16
    seconds +=
        2 * a_.layers *
        (machine_.inside.latency_us * 1e-6 + 2.0 * (s.tp - 1) / s.tp * rows * hidden * 2 / machine_.inside.bytes_per_s);
  if (s.by_data && s.ep > 1) {
    // Rows go to their experts in FP8 and come back in bf16, to as many GPUs as they have experts; the share of them
    // that is on other machines crosses the slower links.
    const double copies = std::min<double>(static_cast<double>(a_.chosen), s.ep - 1.0);
    const double bytes = rows * copies * hidden * 3;
    const double away = s.ep > machine_.gpus ? 1 - static_cast<double>(machine_.gpus) / s.ep : 0;
    const Link& slowest = away > 0 ? machine_.across : machine_.inside;
    seconds += a_.sparse * (2 * slowest.latency_us * 1e-6 + std::max(bytes * away / machine_.across.bytes_per_s,
                                                                     bytes * (1 - away) / machine_.inside.bytes_per_s));
  }
  if (s.stages > 1)
    seconds +=
        (s.stages - 1) * (machine_.across.latency_us * 1e-6 + rows * hidden * 2 / s.tp / machine_.across.bytes_per_s);
  return seconds;
}

// One step of every sequence: through all stages, each of which has a part of the sequences at a time.
StepTime Calculator::step(const Shape& s, double sequences) const {
  const double at_once = std::max(1.0, sequences / s.stages);               // rows that share one pass over the experts
  const double rows = s.by_data ? std::max(1.0, at_once / s.ep) : at_once;  // of one GPU's attention
  const auto context = static_cast<double>(question_.context);
  StepTime t;
  t.weights = (a_.alike.bytes + (a_.divided.bytes + a_.head.bytes) / s.tp) / machine_.bytes_per_s;
  t.experts = a_.experts.bytes * a_.touched(at_once) / s.ep / machine_.bytes_per_s;
  t.latents = rows * std::min(context, static_cast<double>(a_.topk)) * a_.latent_bytes / machine_.bytes_per_s;
  t.index_keys = rows * context * a_.index_bytes / machine_.bytes_per_s;
  const double chosen = a_.experts.parameters * static_cast<double>(a_.chosen) / static_cast<double>(a_.routed);
  t.arithmetic = (rows * 2 * (a_.alike.parameters + (a_.divided.parameters + a_.head.parameters) / s.tp) +
                  at_once * 2 * chosen / s.ep +
                  rows * (std::min(context, static_cast<double>(a_.topk)) * a_.attention_flops / s.tp +
                          context * a_.index_flops)) /
                 machine_.flops;
  t.links = link_seconds(s, rows);
  return t;
}

// A token of a long prompt, on all GPUs of a replica together; weights are read for thousands of tokens at a time.
double Calculator::prefill_seconds(const Shape& s) const {
  const auto prompt = static_cast<double>(question_.prompt);
  const double chosen = a_.experts.parameters * static_cast<double>(a_.chosen) / static_cast<double>(a_.routed);
  const double divided =
      2 * (a_.divided.parameters + chosen) + std::min(prompt / 2, static_cast<double>(a_.topk)) * a_.attention_flops;
  const double alike = 2 * a_.alike.parameters + prompt / 2 * a_.index_flops;  // on every rank that divides attention
  const double arithmetic = (divided / s.gpus() + alike / (s.by_data ? s.gpus() : s.stages)) / machine_.flops;
  constexpr double kRows = 8192;
  return arithmetic + link_seconds(s, kRows) / kRows / (s.by_data ? s.ep : s.stages);
}

ScaleLayout Calculator::layout(const Shape& s) const {
  ScaleLayout out{.name = s.name, .gpus = s.gpus(), .weight_bytes = weight_bytes(s), .token_bytes = a_.cache_bytes()};
  out.replicas = question_.machines * machine_.gpus / s.gpus();
  const double room = (static_cast<double>(machine_.memory_bytes) - out.weight_bytes) * kCacheShare;
  if (room <= 0) {
    out.limit = "the weights do not fit";
    return out;
  }
  out.cache_tokens = static_cast<int64_t>(room * s.stages / a_.cache_bytes()) * (s.by_data ? s.ep : 1);
  const int64_t fit = out.cache_tokens / question_.context;
  const auto seconds = [&](int64_t sequences) { return step(s, static_cast<double>(sequences)).total(); };
  out.first_ms = seconds(1) * 1e3;
  const double tpot = question_.tpot_ms * 1e-3;
  if (fit < 1 || seconds(1) > tpot) {
    out.limit = fit < 1 ? "no room for one context" : "one sequence is slower than asked";
    return out;
  }
  int64_t low = 1, high = fit;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (seconds(middle) <= tpot)
      low = middle;
    else
      high = middle - 1;
  }
  out.batch = low;
  out.tpot_ms = seconds(low) * 1e3;
  out.decode_rate = static_cast<double>(out.replicas) * static_cast<double>(out.batch) / (out.tpot_ms * 1e-3);
  out.prefill_rate = out.replicas / prefill_seconds(s);
  out.limit = step(s, static_cast<double>(low)).largest() + (low == fit ? "; memory for the cache" : "; time a token");
  return out;
}

std::string count_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value >= 1e6 ? "%.1f M" : "%.0f", value >= 1e6 ? value / 1e6 : value);
  return text;
}

}  // namespace

Result<Link> fitted_link(const std::string& measured, int gpus) {
  const Error wrong{Code::Usage,
                    "--all-reduce " + measured,
                    "is no list of BYTES:MICROSECONDS with two sizes or more",
                    {"--all-reduce 12288:22,1048576:31"}};
  double n = 0, sum_s = 0, sum_t = 0, sum_ss = 0, sum_st = 0;
  std::istringstream in(measured);
  for (std::string pair; std::getline(in, pair, ',');) {
    double bytes = 0, us = 0;
    char rest = 0;
    if (std::sscanf(pair.c_str(), "%lf:%lf%c", &bytes, &us, &rest) != 2 || !(bytes > 0) || !(us > 0)) return wrong;
    // Relative errors count, so that large sizes do not decide alone.
    const double w = 1 / (us * us);
    n += w, sum_s += w * bytes, sum_t += w * us, sum_ss += w * bytes * bytes, sum_st += w * bytes * us;
  }
  const double spread = n * sum_ss - sum_s * sum_s;
  if (!(spread > 0) || gpus < 2) return wrong;
  const double slope = (n * sum_st - sum_s * sum_t) / spread;
  if (!(slope > 0))
    return Error{Code::Usage, wrong.what, "its larger sizes take no longer than its smaller ones", wrong.works};
  return Link{.latency_us = std::max(0.0, (sum_t - slope * sum_s) / n),
              .bytes_per_s = 2.0 * (gpus - 1) / gpus / (slope * 1e-6)};
}

Result<Machine> machine_of(const std::string& device, int64_t memory_bytes, int gpus) {
  Error unknown{
      Code::Usage, "--nodes with --device " + device, "how fast its memory and links are is not known here", {}};
  for (const Rates& r : kRates) {
    if (device == r.device)
      return Machine{.device = device,
                     .gpus = gpus,
                     .memory_bytes = memory_bytes,
                     .bytes_per_s = r.bytes_per_s,
                     .flops = r.flops,
                     .inside = r.inside,
                     .across = r.across};
    unknown.works.push_back(std::string("--device ") + r.device);
  }
  return unknown;
}

std::vector<ScaleLayout> scale_out(const ModelConfig& config, const WeightMap& map, const KvGeometry& kv,
                                   const Machine& machine, const ScaleQuestion& question) {
  const Amounts amounts = amounts_of(config, map, kv);
  const Calculator calculator(amounts, machine, question);
  const int gpus = machine.gpus * question.machines;
  std::vector<ScaleLayout> found;
  const auto divides = [&](int count, bool whole) {
    return check_split(config, map, {.count = count, .whole_experts = whole}).has_value();
  };
  for (int tp = 1; tp <= machine.gpus; tp *= 2) {
    if (machine.gpus % tp != 0 || (!divides(tp, false) && !divides(tp, true))) continue;
    for (int stages = 1; stages <= question.machines; stages *= 2) {
      if (question.machines % stages != 0 || (stages > 1 && tp < machine.gpus) || stages > config.num_hidden_layers)
        continue;
      const std::string name = "TP " + std::to_string(tp);
      found.push_back(calculator.layout({.name = stages > 1 ? "PP " + std::to_string(stages) + " x " + name : name,
                                         .tp = tp,
                                         .ep = tp,
                                         .stages = stages}));
    }
  }
  for (int ep = 2; ep <= gpus && config.n_routed_experts % ep == 0; ep *= 2) {
    if (gpus % ep != 0 || (ep > machine.gpus && ep % machine.gpus != 0)) continue;
    found.push_back(
        calculator.layout({.name = "EP " + std::to_string(ep) + ", attention by data", .ep = ep, .by_data = true}));
  }
  std::ranges::stable_sort(found, std::greater{}, &ScaleLayout::decode_rate);
  return found;
}

std::string scale_table(const std::vector<ScaleLayout>& layouts, const Machine& machine,
                        const ScaleQuestion& question) {
  char line[512];
  std::snprintf(
      line, sizeof line,
      "%d x %d %s, calculated, nothing measured: decode at context %lld, at most %.0f ms a token; prompts of %lld, "
      "answers of %lld\n%-28s %8s %10s %12s %7s %9s %9s %10s %10s  %s\n",
      question.machines, machine.gpus, machine.device.c_str(), static_cast<long long>(question.context),
      question.tpot_ms, static_cast<long long>(question.prompt), static_cast<long long>(question.output), "layout",
      "replicas", "weights GB", "cache tokens", "batch", "ms/token", "alone ms", "decode/s", "prefill/s",
      "most of a step; what holds the batch");
  std::string out = line;
  for (const ScaleLayout& l : layouts) {
    std::snprintf(line, sizeof line, "%-28s %8d %10.1f %12s %7lld %9.1f %9.1f %10s %10s  %s\n", l.name.c_str(),
                  l.replicas, l.weight_bytes / 1e9, count_text(static_cast<double>(l.cache_tokens)).c_str(),
                  static_cast<long long>(l.batch), l.tpot_ms, l.first_ms, count_text(l.decode_rate).c_str(),
                  count_text(l.prefill_rate).c_str(), l.limit.c_str());
    out += line;
  }
  if (layouts.empty() || layouts.front().batch == 0)
    return out + "nothing fits: more GPUs, a smaller format, or a shorter context\n";
  const ScaleLayout& best = layouts.front();
  double fastest = 0;
  for (const ScaleLayout& l : layouts) fastest = std::max(fastest, l.prefill_rate);
  const double decode = best.decode_rate / static_cast<double>(question.output);
  const double prefill = fastest / static_cast<double>(question.prompt);
  std::snprintf(
      line, sizeof line,
      "Apart (prefill and decode on machines of their own): %.0f %% of the GPUs prefill, %.1f requests/s in all. "
      "A request's cache to move: %.2f GB\n",
      decode / (prefill + decode) * 100, prefill * decode / (prefill + decode),
      best.token_bytes * static_cast<double>(question.prompt) / 1e9);
  return out + line;
}

}  // namespace plumb

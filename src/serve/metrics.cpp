#include "serve/metrics.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <limits>
#include <utility>

#include "engine/engine_api.h"

namespace plumb {

namespace {

using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

const Histogram::BucketBoundaries& seconds_buckets() {
  static const Histogram::BucketBoundaries kBuckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                       1,     2.5,    5,     10,   30,    60,   120, 300};
  return kBuckets;
}

const Histogram::BucketBoundaries& token_buckets() {
  static const Histogram::BucketBoundaries kBuckets = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576};
  return kBuckets;
}

// The names that vLLM's dashboards and autoscalers ask for.
struct Alias {
  std::string_view ours{}, theirs{};
};
constexpr Alias kAliases[] = {
    {"plumb_sequences_running", "vllm:num_requests_running"},
    {"plumb_sequences_waiting", "vllm:num_requests_waiting"},
    {"plumb_cache_usage_ratio", "vllm:kv_cache_usage_perc"},
    {"plumb_cache_usage_ratio", "vllm:gpu_cache_usage_perc"},
    {"plumb_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"plumb_generated_tokens_total", "vllm:generation_tokens_total"},
    {"plumb_prompt_tokens_total", "vllm:prefix_cache_queries_total"},
    {"plumb_cached_tokens_total", "vllm:prefix_cache_hits_total"},
    {"plumb_preemptions_total", "vllm:num_preemptions_total"},
    {"plumb_drafts_proposed_total", "vllm:spec_decode_num_draft_tokens_total"},
    {"plumb_drafts_accepted_total", "vllm:spec_decode_num_accepted_tokens_total"},
    {"plumb_generations_total", "vllm:request_success_total"},
    {"plumb_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"plumb_inter_token_seconds", "vllm:inter_token_latency_seconds"},
    {"plumb_time_per_output_token_seconds", "vllm:time_per_output_token_seconds"},
    {"plumb_generation_seconds", "vllm:e2e_request_latency_seconds"},
    {"plumb_request_prompt_tokens", "vllm:request_prompt_tokens"},
    {"plumb_request_completion_tokens", "vllm:request_generation_tokens"},
};

void append_aliases(std::vector<MetricFamily>& families, const std::string& model) {
  std::vector<MetricFamily> more;
  for (const Alias& alias : kAliases) {
    for (const MetricFamily& family : families) {
      if (family.name != alias.ours) continue;
      MetricFamily copy = family;
      copy.name = alias.theirs;
      copy.help = "The same as " + family.name + ".";
      for (prometheus::ClientMetric& metric : copy.metric) {
        for (prometheus::ClientMetric::Label& label : metric.label)
          if (label.name == "reason") label.name = "finished_reason";
        metric.label.push_back({"model_name", model});
      }
      more.push_back(std::move(copy));
    }
  }
  families.insert(families.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

MetricFamily single(std::string name, std::string help, MetricType type, double value) {
  MetricFamily family;
  family.name = std::move(name);
  family.help = std::move(help);
  family.type = type;
  prometheus::ClientMetric metric;
  if (type == MetricType::Counter) metric.counter.value = value;
  if (type == MetricType::Gauge) metric.gauge.value = value;
  family.metric.push_back(std::move(metric));
  return family;
}

MetricFamily shadow_ratios(const ShadowCounts& counts) {
  MetricFamily family;
  family.name = "plumb_shadow_error_ratio";
  family.help = "Largest error of a shadowed op over its bound.";
  family.type = MetricType::Histogram;
  prometheus::ClientMetric metric;
  uint64_t sum = 0;
  for (size_t i = 0; i < counts.ratio.size(); ++i) {
    sum += counts.ratio[i];
    const bool last = i == ShadowCounts::kRatioEdges.size();
    metric.histogram.bucket.push_back(
        {.cumulative_count = sum,
         .upper_bound = last ? std::numeric_limits<double>::infinity() : ShadowCounts::kRatioEdges[i]});
  }
  metric.histogram.sample_count = sum;
  metric.histogram.sample_sum = counts.ratio_sum;
  family.metric.push_back(std::move(metric));
  return family;
}

void append_guard(std::vector<MetricFamily>& out, const EngineStats& s) {
  const GuardStats& g = s.guard;
  const auto counter = [&](const char* name, const char* help, uint64_t value) {
    out.push_back(single(name, help, MetricType::Counter, static_cast<double>(value)));
  };
  MetricFamily faults = single("plumb_numerical_faults_total", "Rows found poisoned, by kind.", MetricType::Counter, 0);
  faults.metric.clear();
  for (const auto& [kind, value] : {std::pair("nan", g.nan_rows), {"inf", g.inf_rows}, {"drift", g.drift_rows}}) {
    prometheus::ClientMetric metric;
    metric.label.push_back({.name = "kind", .value = kind});
    metric.counter.value = static_cast<double>(value);
    faults.metric.push_back(std::move(metric));
  }
  out.push_back(std::move(faults));
  counter("plumb_captures_written_total", "Captures of numerical faults on disk.", g.captures_written);
  counter("plumb_captures_dropped_total", "Captures left out for want of room.", g.captures_dropped);
  counter("plumb_kv_fp8_codes_total", "Latent values written to an FP8 cache.", g.cache_codes);
  counter("plumb_kv_fp8_saturated_total", "Of these, at the largest magnitude beyond the one of each group.",
          g.saturated_codes);
  counter("plumb_shadow_steps_total", "Steps of which a row was recomputed.", g.shadow.steps);
  counter("plumb_shadow_steps_skipped_total", "Steps left out because the one before was still being recomputed.",
          g.shadow.skipped);
  counter("plumb_shadow_ops_total", "Ops recomputed by the reference.", g.shadow.ops);
  counter("plumb_shadow_ops_outside_total", "Of these, out of bound.", g.shadow.outside);
  out.push_back(shadow_ratios(g.shadow));
}

double resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  double total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

void append_engine(std::vector<MetricFamily>& out, const EngineStats& s) {
  const auto counter = [&](const char* name, const char* help, double value) {
    out.push_back(single(name, help, MetricType::Counter, value));
  };
  const auto gauge = [&](const char* name, const char* help, double value) {
    out.push_back(single(name, help, MetricType::Gauge, value));
  };
  gauge("plumb_sequences_running", "Sequences in the running batch.", s.running);
  gauge("plumb_sequences_waiting", "Sequences that wait for a place.", s.waiting);
  gauge("plumb_cache_pages", "Pages of the KV cache.", static_cast<double>(s.pages_total));
  gauge("plumb_cache_pages_free", "Pages that nothing uses.", static_cast<double>(s.pages_free));
  const int64_t used = s.pages_total - s.pages_free - s.pages_cached;
  gauge("plumb_cache_usage_ratio", "Share of the pages that running sequences hold.",
        s.pages_total > 0 ? static_cast<double>(used) / static_cast<double>(s.pages_total) : 0);
  gauge("plumb_cache_pages_cached", "Pages kept for their prefix alone.", static_cast<double>(s.pages_cached));
  counter("plumb_steps_total", "Passes of the model over a batch.", static_cast<double>(s.steps));
  counter("plumb_prompt_tokens_total", "Prompt tokens computed.", static_cast<double>(s.prompt_tokens));
  counter("plumb_generated_tokens_total", "Tokens generated.", static_cast<double>(s.generated_tokens));
  counter("plumb_cached_tokens_total", "Prompt tokens taken from the prefix cache.",
          static_cast<double>(s.cached_tokens));
  counter("plumb_preemptions_total", "Sequences that gave way.", static_cast<double>(s.preemptions));
  counter("plumb_aborts_total", "Sequences cancelled.", static_cast<double>(s.aborts));
  append_guard(out, s);
  counter("plumb_drafts_proposed_total", "Draft tokens proposed.", static_cast<double>(s.drafts_proposed));
  counter("plumb_drafts_accepted_total", "Draft tokens accepted.", static_cast<double>(s.drafts_accepted));
  counter("plumb_step_seconds_total", "Time in steps.", s.step_seconds);
  counter("plumb_op_seconds_total", "Time in the ops of steps.", s.op_seconds);
}

}  // namespace

struct Metrics::Impl {
  const double started = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  prometheus::Registry registry{};
  prometheus::Family<prometheus::Counter>& requests = prometheus::BuildCounter()
                                                          .Name("plumb_http_requests_total")
                                                          .Help("Answers by route and status.")
                                                          .Register(registry);
  prometheus::Family<Histogram>& request_seconds = prometheus::BuildHistogram()
                                                       .Name("plumb_http_request_seconds")
                                                       .Help("From the request's head to the answer's last byte.")
                                                       .Register(registry);
  prometheus::Family<prometheus::Counter>& ended = prometheus::BuildCounter()
                                                       .Name("plumb_generations_total")
                                                       .Help("Generations by how they ended.")
                                                       .Register(registry);
  Histogram& first_token = histogram("plumb_time_to_first_token_seconds", "From the request to its first token.");
  Histogram& per_token =
      histogram("plumb_time_per_output_token_seconds", "Mean over a request, after its first token.");
  Histogram& inter_token =
      histogram("plumb_inter_token_seconds", "Between tokens of a choice; those of one step share its time.");
  Histogram& generation = histogram("plumb_generation_seconds", "From the request to its last token.");
  Histogram& prompt_tokens = prometheus::BuildHistogram()
                                 .Name("plumb_request_prompt_tokens")
                                 .Help("Prompt tokens of a request.")
                                 .Register(registry)
                                 .Add({}, token_buckets());
  Histogram& completion_tokens = prometheus::BuildHistogram()
                                     .Name("plumb_request_completion_tokens")
                                     .Help("Tokens generated for a request.")
                                     .Register(registry)
                                     .Add({}, token_buckets());

  Histogram& histogram(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, seconds_buckets());
  }
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

void Metrics::http_request(std::string_view route, int status, double seconds) {
  const std::string name(route);
  impl_->requests.Add({{"route", name}, {"status", std::to_string(status)}}).Increment();
  impl_->request_seconds.Add({{"route", name}}, seconds_buckets()).Observe(seconds);
}

void Metrics::first_token(double seconds) { impl_->first_token.Observe(seconds); }
void Metrics::between_tokens(double seconds, int times) {
  for (int i = 0; i < times; ++i) impl_->inter_token.Observe(seconds);
}

void Metrics::finished(const Finished& what) {
  impl_->ended.Add({{"reason", std::string(what.reason)}}).Increment();
  impl_->generation.Observe(what.seconds);
  if (what.seconds_per_token > 0) impl_->per_token.Observe(what.seconds_per_token);
  impl_->prompt_tokens.Observe(what.prompt_tokens);
  impl_->completion_tokens.Observe(what.completion_tokens);
}

std::string Metrics::text(const EngineStats* engine, Gauges gauges, const std::string& vllm_model) const {
  std::vector<MetricFamily> families = impl_->registry.Collect();
  families.push_back(single("plumb_http_connections", "Open connections.", MetricType::Gauge, gauges.connections));
  families.push_back(single("plumb_ready", "1 when /health answers 200.", MetricType::Gauge, gauges.ready ? 1 : 0));
  families.push_back(
      single("plumb_resident_memory_bytes", "Memory of this process in RAM.", MetricType::Gauge, resident_bytes()));
  families.push_back(single("plumb_start_time_seconds", "Unix time of the start.", MetricType::Gauge, impl_->started));
  if (engine != nullptr) append_engine(families, *engine);
  if (!vllm_model.empty()) append_aliases(families, vllm_model);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace plumb

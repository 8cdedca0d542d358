#include "cli/bench_serve.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/bench_workload.h"
#include "cli/load_client.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

struct Summary {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;
};

// Percentiles are values that occurred: the nearest rank.
Summary summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto rank = [&](double share) {
    const auto place = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<size_t>(place, 1) - 1];
  };
  double sum = 0;
  for (const double value : values) sum += value;
  return {.mean = sum / static_cast<double>(values.size()), .p50 = rank(0.5), .p90 = rank(0.9), .p99 = rank(0.99)};
}

struct Report {
  int completed = 0, failed = 0;
  int64_t input_tokens = 0, output_tokens = 0;
  double duration_s = 0;
  bool exact = true;  // tokens were counted by the server
  Summary ttft{}, tpot{}, itl{}, e2e{};
  std::string first_error{}, fingerprint{};
};

Report make_report(const std::vector<LoadResult>& results) {
  Report r;
  std::vector<double> ttft, tpot, itl, e2e;
  double begin = 1e300, end = 0;
  for (const LoadResult& one : results) {
    begin = std::min(begin, one.sent_s);
    end = std::max(end, one.sent_s + one.total_s);
    if (!one.error.empty()) {
      if (r.failed++ == 0) r.first_error = one.error;
      continue;
    }
    ++r.completed;
    r.input_tokens += one.prompt_tokens;
    r.output_tokens += one.completion_tokens;
    r.exact = r.exact && one.counted_by_server;
    if (r.fingerprint.empty()) r.fingerprint = one.fingerprint;
    e2e.push_back(one.total_s);
    if (one.first_s <= 0) continue;
    ttft.push_back(one.first_s);
    if (one.completion_tokens > 1) tpot.push_back((one.total_s - one.first_s) / (one.completion_tokens - 1));
    itl.insert(itl.end(), one.gaps_s.begin(), one.gaps_s.end());
  }
  r.duration_s = std::max(1e-9, end - begin);
  r.ttft = summarize(std::move(ttft));
  r.tpot = summarize(std::move(tpot));
  r.itl = summarize(std::move(itl));
  r.e2e = summarize(std::move(e2e));
  return r;
}

void print_text(const BenchServeOptions& o, const std::string& model, const Report& r) {
  const auto line = [](const char* name, double value) { std::printf("%-34s %12.2f\n", name, value); };
  std::printf("%s at %s, %s, %s\n", model.c_str(), o.url.c_str(), o.workload.c_str(),
              r.fingerprint.empty() ? "no fingerprint" : ("plan " + r.fingerprint).c_str());
  std::printf("%-34s %12d\n%-34s %12d\n", "Successful requests", r.completed, "Failed requests", r.failed);
  line("Duration (s)", r.duration_s);
  std::printf("%-34s %12lld\n%-34s %12lld%s\n", "Input tokens", static_cast<long long>(r.input_tokens), "Output tokens",
              static_cast<long long>(r.output_tokens), r.exact ? "" : "  (events: the server sent no usage)");
  line("Request throughput (req/s)", r.completed / r.duration_s);
  line("Output token throughput (tok/s)", static_cast<double>(r.output_tokens) / r.duration_s);
  line("Total token throughput (tok/s)", static_cast<double>(r.input_tokens + r.output_tokens) / r.duration_s);
  std::printf("%-34s %12s %12s %12s %12s\n", "ms", "mean", "p50", "p90", "p99");
  const auto row = [](const char* name, const Summary& s) {
    std::printf("%-34s %12.2f %12.2f %12.2f %12.2f\n", name, s.mean * 1e3, s.p50 * 1e3, s.p90 * 1e3, s.p99 * 1e3);
  };
  if (!o.no_stream) {
    row("TTFT (time to first token)", r.ttft);
    row("TPOT (time per output token)", r.tpot);
    row("ITL (inter-token latency)", r.itl);
  }
  row("E2E (end to end)", r.e2e);
}

void print_json(const BenchServeOptions& o, const std::string& model, const Report& r) {
  Json out = {{"model", model},
              {"url", o.url},
              {"endpoint", o.endpoint},
              {"workload", o.workload},
              {"stream", !o.no_stream},
              {"request_rate", o.rate > 0 ? Json(o.rate) : Json("inf")},
              {"max_concurrency", o.concurrency},
              {"plan_fingerprint", r.fingerprint},
              {"completed", r.completed},
              {"failed", r.failed},
              {"duration", r.duration_s},
              {"total_input_tokens", r.input_tokens},
              {"total_output_tokens", r.output_tokens},
              {"tokens_counted_by_server", r.exact},
              {"request_throughput", r.completed / r.duration_s},
              {"output_throughput", static_cast<double>(r.output_tokens) / r.duration_s},
              {"total_token_throughput", static_cast<double>(r.input_tokens + r.output_tokens) / r.duration_s}};
  const auto add = [&](const std::string& name, const Summary& s) {
    out["mean_" + name + "_ms"] = s.mean * 1e3;
    out["p50_" + name + "_ms"] = s.p50 * 1e3;
    out["p90_" + name + "_ms"] = s.p90 * 1e3;
    out["p99_" + name + "_ms"] = s.p99 * 1e3;
  };
  if (!o.no_stream) {
    add("ttft", r.ttft);
    add("tpot", r.tpot);
    add("itl", r.itl);
  }
  add("e2el", r.e2e);
  std::printf("%s\n", out.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

Result<std::string> served_model(const BenchServeOptions& o, const Address& address) {
  if (!o.model.empty()) return o.model;
  PLUMB_TRY(const std::string body, fetch(address, "/v1/models", o.api_key));
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const bool named = json.is_object() && json.contains("data") && json["data"].is_array() && !json["data"].empty() &&
                     json["data"][0].is_object() && json["data"][0].contains("id") && json["data"][0]["id"].is_string();
  if (!named) return Error{Code::Environment, o.url + "/v1/models names no model", "", {"--model NAME"}};
  return json["data"][0]["id"].get<std::string>();
}

}  // namespace

Status bench_serve(const BenchServeOptions& o) {
  if ((o.workload == "trace") != !o.trace.empty())
    return Error{Code::Usage, "--workload trace and --trace FILE", "each needs the other", {}};
  PLUMB_TRY(const Address address, parse_url(o.url));
  PLUMB_TRY(const std::string model, served_model(o, address));
  PLUMB_TRY(std::vector<BenchRequest> requests, make_workload(o, model));
  const auto counted = requests.begin() + o.warmup;
  for (const LoadResult& warm : send_load(address, o.api_key, {requests.begin(), counted}, {.concurrency = 1})) {
    if (!warm.error.empty())
      return Error{Code::Environment, "a warm-up request failed", warm.error, {"--warmup 0 to go on all the same"}};
  }
  const bool own_times = o.workload == "trace" && requests.back().at_s > 0;
  const std::vector<LoadResult> results = send_load(address, o.api_key, {counted, requests.end()},
                                                    {.concurrency = o.concurrency, .timed = o.rate > 0 || own_times});
  const Report report = make_report(results);
  o.json ? print_json(o, model, report) : print_text(o, model, report);
  if (report.failed == 0) return Ok{};
  return Error{Code::Environment, std::to_string(report.failed) + " requests failed", report.first_error, {}};
}

}  // namespace plumb

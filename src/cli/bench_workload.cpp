#include "cli/bench_workload.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kWords[] = {"stone", "river", "glass",  "field", "paper", "light", "sound", "metal",
                                  "cloud", "bread", "window", "table", "horse", "night", "water", "green",
                                  "north", "clock", "wheel",  "plant", "voice", "chair", "smoke", "earth"};

std::string words(int count, std::mt19937_64& random) {
  std::string text;
  for (int i = 0; i < count; ++i) text.append(i == 0 ? "" : " ").append(kWords[random() % std::size(kWords)]);
  return text;
}

BenchRequest request_of(const BenchServeOptions& o, const std::string& model, Json input, int output) {
  const bool chat = o.endpoint == "chat";
  Json body = {{"model", model}};
  if (!chat && input.is_array() && !input.empty() && input[0].is_object()) input = input.dump();
  if (chat && input.is_string()) input = Json::array({{{"role", "user"}, {"content", input}}});
  body[chat ? "messages" : "prompt"] = std::move(input);
  body["max_tokens"] = output;
  body["temperature"] = o.temperature;
  body["stream"] = !o.no_stream;
  if (!o.no_stream) body["stream_options"] = {{"include_usage", true}};
  if (!o.use_eos) body["ignore_eos"] = true;
  return {.path = chat ? "/v1/chat/completions" : "/v1/completions", .body = body.dump()};
}

Status read_trace(const BenchServeOptions& o, const std::string& model, std::mt19937_64& random,
                  std::vector<BenchRequest>& out) {
  std::ifstream file(o.trace);
  if (!file) return Error{Code::Usage, "--trace " + o.trace, "the file cannot be read", {}};
  std::string line;
  double first_ms = -1;
  for (int number = 1; std::getline(file, line) && static_cast<int>(out.size()) < o.requests; ++number) {
    if (line.empty()) continue;
    const Json entry = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto number_of = [&](const char* name, double fallback) {
      return entry.contains(name) && entry[name].is_number() ? entry[name].get<double>() : fallback;
    };
    const bool given = entry.is_object() && (entry.contains("prompt") || entry.contains("messages"));
    const double length = entry.is_object() ? number_of("input_length", 0) : 0;
    if (!given && length < 1)
      return Error{Code::Usage,
                   o.trace + ":" + std::to_string(number) + ": no object with prompt, messages or input_length",
                   "",
                   {R"({"timestamp": 0, "input_length": 512, "output_length": 64})"}};
    Json input = words(static_cast<int>(length), random);
    if (given) input = entry.contains("messages") ? entry["messages"] : entry["prompt"];
    const double output = number_of("output_length", number_of("max_tokens", o.output_tokens));
    BenchRequest request = request_of(o, model, std::move(input), static_cast<int>(output));
    const double at_ms = number_of("timestamp", 0);
    if (first_ms < 0) first_ms = at_ms;
    request.at_s = (at_ms - first_ms) / 1000;
    out.push_back(std::move(request));
  }
  if (out.empty()) return Error{Code::Usage, "--trace " + o.trace, "it holds no request", {}};
  return Ok{};
}

}  // namespace

Result<std::vector<BenchRequest>> make_workload(const BenchServeOptions& o, const std::string& model) {
  std::mt19937_64 random(o.seed);
  std::vector<BenchRequest> counted;
  if (o.workload == "trace") {
    PLUMB_TRY_STATUS(read_trace(o, model, random, counted));
  } else {
    const bool shared = o.workload == "shared-prefix";
    const std::string prefix = shared ? words(o.prefix_tokens, random) + " " : "";
    for (int i = 0; i < o.requests; ++i)
      counted.push_back(request_of(o, model, prefix + words(o.input_tokens, random), o.output_tokens));
  }
  // A trace has its own times unless a rate is asked for.
  std::exponential_distribution<double> gap(o.rate > 0 ? o.rate : 1);
  double at = 0;
  for (BenchRequest& request : counted) {
    if (o.rate > 0) request.at_s = at += gap(random);
  }
  std::vector<BenchRequest> all;
  all.reserve(static_cast<size_t>(o.warmup) + counted.size());
  for (int i = 0; i < o.warmup; ++i) all.push_back(request_of(o, model, words(8, random), 4));
  all.insert(all.end(), std::make_move_iterator(counted.begin()), std::make_move_iterator(counted.end()));
  return all;
}

}  // namespace plumb

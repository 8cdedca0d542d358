#include "cli/op_times.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <numeric>

namespace plumb {
namespace {

constexpr int kTimes = 20;

bool repeatable(Op op) {
  return op != Op::Sample && op != Op::AllReduce && op != Op::GatherColumns && op != Op::DraftSet;
}

// "layers.*.mlp.experts" for each of its layers
std::string folded(const std::string& place) {
  constexpr std::string_view kLayers = "layers.";
  if (!place.starts_with(kLayers)) return place;
  size_t end = kLayers.size();
  while (end < place.size() && std::isdigit(static_cast<unsigned char>(place[end])) != 0) ++end;
  return std::string(kLayers) + "*" + place.substr(end);
}

}  // namespace

void OpTimes::after(const OpCall& call, Executor& executor) {
  const SiteDecl& decl = executor.plan().sites[static_cast<size_t>(call.site)].decl;
  if (!repeatable(decl.call.op)) return;
  const Memory& memory = executor.memory();
  Stream& stream = executor.stream();
  const auto launches = [&] {
    for (int i = 0; i < kTimes; ++i) call.kernel.launch(call.args, stream);
  };
  memory.synchronise(stream);
  const std::shared_ptr<void> recording = memory.record != nullptr ? memory.record(launches, stream) : nullptr;
  const auto run = [&] {
    recording != nullptr ? memory.replay(recording.get(), stream) : launches();
    memory.synchronise(stream);
  };
  if (recording != nullptr) run();
  const auto begin = std::chrono::steady_clock::now();
  run();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kTimes;
  const std::string place = folded(decl.name);
  const std::string& kernel = call.kernel.contract.name;
  auto line = std::ranges::find_if(lines_, [&](const Line& l) { return l.place == place && l.kernel == kernel; });
  if (line == lines_.end()) line = lines_.insert(lines_.end(), {.place = place, .kernel = kernel});
  line->seconds.push_back(seconds);
}

std::string OpTimes::table() const {
  char text[200];
  std::string all = "launched 20 times in a row, operands warm, us:\n";
  double total = 0;
  for (const Line& line : lines_) {
    const double sum = std::accumulate(line.seconds.begin(), line.seconds.end(), 0.0);
    total += sum;
    std::snprintf(text, sizeof text, "%-40s %-40s %3zu x %9.1f %10.1f\n", line.place.c_str(), line.kernel.c_str(),
                  line.seconds.size(), sum / static_cast<double>(line.seconds.size()) * 1e6, sum * 1e6);
    all += text;
  }
  std::snprintf(text, sizeof text, "%-40s %-40s %17s %10.1f\n", "all", "", "", total * 1e6);
  return all + text;
}

}  // namespace plumb

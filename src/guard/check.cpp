#include "guard/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "guard/op_recorder.h"
#include "guard/path_bound.h"
#include "model/tap_recorder.h"

namespace plumb {
namespace {

// Judges launches as they happen and keeps what is out of bound.
class Judge {
 public:
  Judge(ModelRunner& runner, const Witness& witness, const CheckOptions& options)
      : runner_(runner),
        witness_(witness),
        options_(options),
        recorder_([this](const OpCall& call) { return choose(call); }, [this](OpRecord r) { take(std::move(r)); }) {
    results_.resize(plan().sites.size());
    runner_.executor().add_observer(recorder_);
  }
  ~Judge() { runner_.executor().remove_observer(recorder_); }
  Judge(const Judge&) = delete;
  Judge& operator=(const Judge&) = delete;

  // `positions`: of the pass's rows.
  void begin(std::string phase, std::vector<int32_t> positions) {
    phase_ = std::move(phase);
    positions_ = std::move(positions);
  }
  void sampled_badly(SiteId site, const Kernel& kernel, int32_t row);
  const OpRecord* first() const { return first_ ? &*first_ : nullptr; }
  void finish(CheckReport& report) const;

 private:
  const Plan& plan() const { return runner_.planned().plan; }
  RowRange choose(const OpCall& call) {
    if (options_.first_only && !findings_.empty()) return {};
    if (options_.rows_judged <= 0 || call.rows <= options_.rows_judged) return {.first = 0, .count = call.rows};
    turn_ = (turn_ + 1) % (call.rows - options_.rows_judged + 1);  // other rows each time
    return {.first = turn_, .count = options_.rows_judged};
  }
  void take(OpRecord record);
  OpFinding finding(SiteId site, const Kernel& kernel) const;

  ModelRunner& runner_;
  const Witness& witness_;
  const CheckOptions& options_;
  OpRecorder recorder_;
  std::string phase_{};
  std::vector<int32_t> positions_{};
  std::vector<SiteResult> results_{};
  std::vector<OpFinding> findings_{};
  std::optional<OpRecord> first_{};
  int64_t launches_ = 0, elements_ = 0, turn_ = 0;
};

OpFinding Judge::finding(SiteId site, const Kernel& kernel) const {
  const SiteDecl& decl = plan().sites[static_cast<size_t>(site)].decl;
  return {.site = site,
          .place = decl.name,
          .op = to_string(decl.call.op),
          .kernel = kernel.contract.name,
          .layer = decl.layer,
          .phase = phase_};
}

void Judge::take(OpRecord record) {
  const Judgement judgement = witness_.judge(record);
  ++launches_;
  elements_ += judgement.compared;
  SiteResult& result = results_[static_cast<size_t>(record.site())];
  if (judgement.worst >= result.worst) result.kernel = record.kernel().contract.name;
  result.worst = std::max(result.worst, judgement.worst);
  result.compared += judgement.compared;
  const bool failed_before = result.outside > 0;
  result.outside += judgement.outside;
  if (judgement.passes() || failed_before) return;
  OpFinding found = finding(record.site(), record.kernel());
  found.judgement = judgement;
  if (judgement.deviation.row >= 0) {
    found.row = record.step_row(judgement.deviation.row);
    if (found.row < static_cast<int32_t>(positions_.size()))
      found.position = positions_[static_cast<size_t>(found.row)];
  }
  findings_.push_back(std::move(found));
  if (!first_) first_ = std::move(record);
}

void Judge::sampled_badly(SiteId site, const Kernel& kernel, int32_t row) {
  SiteResult& result = results_[static_cast<size_t>(site)];
  result.worst = std::numeric_limits<double>::infinity();
  if (result.outside++ > 0) return;
  OpFinding found = finding(site, kernel);
  found.row = row;
  found.judgement = {.compared = 1, .outside = 1, .worst = result.worst};
  found.judgement.deviation = {.tensor = "logits", .kind = "nan", .row = row};
  findings_.push_back(std::move(found));
}

void Judge::finish(CheckReport& report) const {
  report.launches = launches_;
  report.elements = elements_;
  report.findings = findings_;
  for (size_t i = 0; i < results_.size(); ++i) {
    if (results_[i].compared == 0 && results_[i].outside == 0) continue;
    SiteResult result = results_[i];
    const SiteDecl& decl = plan().sites[i].decl;
    result.place = decl.name;
    result.op = to_string(decl.call.op);
    result.layer = decl.layer;
    report.sites.push_back(std::move(result));
  }
}

using Logits = std::vector<float>;

// Drives the runner through the phases.
class Walk {
 public:
  Walk(ModelRunner& runner, Judge& judge, const CheckOptions& options)
      : runner_(runner), judge_(judge), options_(options), vocab_(static_cast<size_t>(runner.config().vocab_size)) {}

  Status all(CheckReport& report);

 private:
  // One pass; logits of the rows that want them.
  Result<Logits> pass(std::string phase, const std::vector<RunnerRow>& rows);
  Status sample(const StepOutput& out, const Logits& logits, const std::vector<RunnerRow>& rows);
  Result<Logits> prompt(int sequence, size_t length, size_t chunk);
  Status decode(Logits& from_steps, Logits& from_prefill);
  Status batches(CheckReport& report);
  void compare(CheckReport& report, std::string name, const Logits& a, const Logits& b) const;

  ModelRunner& runner_;
  Judge& judge_;
  const CheckOptions& options_;
  size_t vocab_;
};

Result<Logits> Walk::pass(std::string phase, const std::vector<RunnerRow>& rows) {
  std::vector<int32_t> positions;
  std::map<int, int> next;
  for (const RunnerRow& row : rows) {
    const auto [at, first] = next.try_emplace(row.sequence, row.sequence < 0 ? 0 : runner_.length(row.sequence));
    positions.push_back(at->second++);
  }
  judge_.begin(std::move(phase), std::move(positions));
  PLUMB_TRY(const StepOutput out, runner_.step(rows));
  if (out.logits.data == nullptr) return Logits();
  std::vector<std::byte> storage;
  const Tensor host = runner_.executor().to_host(out.logits, storage);
  Logits logits(host.f32(), host.f32() + host.elements());
  PLUMB_TRY_STATUS(sample(out, logits, rows));
  return logits;
}

// Greedy and random draws in turn, from logits that are finite: a sampler that then sees others is at fault itself.
Status Walk::sample(const StepOutput& out, const Logits& logits, const std::vector<RunnerRow>& rows) {
  const int64_t count = out.logits.dim(0);
  for (int64_t r = 0; r < count; ++r)
    if (argmax({logits.data() + static_cast<size_t>(r) * vocab_, vocab_}) < 0) return Ok{};  // an op before it is
  std::vector<SampleRow> asked(static_cast<size_t>(count));
  std::vector<SampleOut> drawn(static_cast<size_t>(count));
  for (size_t r = 0; r < asked.size(); ++r)
    asked[r] = {.temperature = r % 2 == 0 ? 1.0f : 0.0f, .seed = 1, .position = rows.size() + r};
  const SiteId site = runner_.planned().sites.sample;
  runner_.executor().run(
      site, count, SampleArgs{.logits = out.logits, .vocab = static_cast<int>(vocab_), .rows = asked, .out = drawn});
  for (size_t r = 0; r < drawn.size(); ++r)
    if (drawn[r].poisoned)
      judge_.sampled_badly(site, runner_.planned().plan.kernel(site, count), static_cast<int32_t>(r));
  return Ok{};
}

// Logits of the last position.
Result<Logits> Walk::prompt(int sequence, size_t length, size_t chunk) {
  Logits last;
  for (size_t at = 0; at < length; at += chunk) {
    std::vector<RunnerRow> rows;
    for (size_t i = at; i < std::min(length, at + chunk); ++i)
      rows.push_back({.sequence = sequence, .id = options_.ids[i], .logits = i + 1 == length});
    PLUMB_TRY(last, pass(fmt::format("prefill of {} rows{}", rows.size(), at > 0 ? ", continued" : ""), rows));
  }
  return last;
}

// The last tokens of the prompt once in one pass and once one by one: [steps, vocab] each.
Status Walk::decode(Logits& from_steps, Logits& from_prefill) {
  const size_t steps = std::min(static_cast<size_t>(options_.decode_steps), options_.ids.size() - 1);
  const size_t begin = options_.ids.size() - steps;
  const size_t most = static_cast<size_t>(runner_.planned().limits.rows);
  runner_.reset();
  for (size_t at = 0; at < options_.ids.size(); at += most) {
    std::vector<RunnerRow> rows;
    for (size_t i = at; i < std::min(options_.ids.size(), at + most); ++i)
      rows.push_back({.id = options_.ids[i], .logits = i >= begin});
    PLUMB_TRY(const Logits part, pass(fmt::format("prefill of {} rows", rows.size()), rows));
    from_prefill.insert(from_prefill.end(), part.begin(), part.end());
  }
  runner_.truncate(0, static_cast<int>(begin));
  for (size_t i = begin; i < options_.ids.size(); ++i) {
    PLUMB_TRY(const Logits part, pass("decode", {{.id = options_.ids[i], .logits = true}}));
    from_steps.insert(from_steps.end(), part.begin(), part.end());
  }
  return Ok{};
}

// Sequences of different lengths, decoded in batches of every size, against the first one's own decode step. Padding
// rows stand between them.
Status Walk::batches(CheckReport& report) {
  runner_.reset();
  const auto length = [&](int s) {
    const size_t less = static_cast<size_t>(s) + 1;
    return options_.ids.size() > less ? options_.ids.size() - less : 1;
  };
  for (int s = 0; s < options_.sequences; ++s)
    PLUMB_TRY_STATUS([&]() -> Status {
      PLUMB_TRY(const Logits ignored, prompt(s, length(s), 64));
      return Ok{};
    }());
  std::vector<Logits> alone;
  const auto rewind = [&](int s) { runner_.truncate(s, static_cast<int>(length(s))); };
  const auto row_of = [&](int s) {
    return RunnerRow{.sequence = s, .id = options_.ids[length(s) % options_.ids.size()], .logits = true};
  };
  for (int s = 0; s < options_.sequences; ++s) {
    PLUMB_TRY(alone.emplace_back(), pass("decode", {row_of(s)}));
    rewind(s);
  }
  for (int size = 2; size <= options_.sequences; ++size) {
    std::vector<RunnerRow> rows;
    Logits separate;
    for (int s = 0; s < size; ++s) {
      rows.push_back(row_of(s));
      separate.insert(separate.end(), alone[static_cast<size_t>(s)].begin(), alone[static_cast<size_t>(s)].end());
    }
    PLUMB_TRY(const Logits together, pass(fmt::format("decode, batch of {}", size), rows));
    compare(report, fmt::format("batch of {} against one by one", size), together, separate);
    for (int s = 0; s < size; ++s) rewind(s);
  }
  return Ok{};
}

void Walk::compare(CheckReport& report, std::string name, const Logits& a, const Logits& b) const {
  float largest = 0;
  for (const float x : b) largest = std::max(largest, std::fabs(x));
  PathResult result{.name = std::move(name), .bound = path_bound(runner_.planned().plan, static_cast<double>(largest))};
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= result.figure)) result.figure = difference;
    if (std::isnan(difference)) break;
  }
  report.paths.push_back(std::move(result));
}

Status Walk::all(CheckReport& report) {
  Logits from_steps, from_prefill;
  PLUMB_TRY_STATUS(decode(from_steps, from_prefill));  // logits of the same positions
  compare(report, "decode against prefill", from_steps, from_prefill);
  if (!options_.paths) return Ok{};
  const Logits last(from_prefill.end() - static_cast<std::ptrdiff_t>(vocab_), from_prefill.end());
  for (const size_t chunk : {size_t{7}, size_t{64}}) {
    if (chunk >= options_.ids.size()) continue;
    runner_.reset();
    PLUMB_TRY(const Logits chunked, prompt(0, options_.ids.size(), chunk));
    compare(report, fmt::format("chunks of {} against one", chunk), chunked, last);
  }
  if (options_.sequences > 1) PLUMB_TRY_STATUS(batches(report));
  runner_.reset();
  return Ok{};
}

std::vector<KernelTrial> try_kernels(const Witness& witness, const OpRecord& record, const OpFinding& finding) {
  std::vector<KernelTrial> trials;
  for (const Kernel* kernel : witness.accepted(record)) {
    KernelTrial trial{.kernel = kernel->contract.name,
                      .flag = "--kernel " + finding.place + "=" + kernel->contract.name,
                      .planned = kernel == &record.kernel()};
    Result<Judgement> judged = trial.planned ? Result<Judgement>(finding.judgement) : witness.judge(record, *kernel);
    if (!judged) {
      trial.figure = judged.error().to_string();
    } else {
      trial.passes = judged->passes();
      trial.figure = trial.passes ? fmt::format("{:.2g} of its bound", judged->worst) : judged->to_string();
    }
    trials.push_back(std::move(trial));
  }
  return trials;
}

}  // namespace

std::string OpFinding::to_string() const {
  std::string where = fmt::format("{} ({}, kernel {}) in {}", place, op, kernel, phase);
  if (position >= 0) where += fmt::format(", position {}", position);
  return where + ": " + judgement.to_string();
}

bool CheckReport::passes() const {
  return findings.empty() && std::all_of(paths.begin(), paths.end(), [](const PathResult& p) { return p.passes(); });
}

std::string CheckReport::verdict() const {
  if (!findings.empty()) return findings.front().to_string();
  for (const PathResult& path : paths)
    if (!path.passes())
      return fmt::format("{}: logits differ by {:.3g}, allowed are {:.3g}; every op by itself is within its bound",
                         path.name, path.figure, path.bound);
  return fmt::format("every op is within its bound ({} launches, {} values) and all paths agree", launches, elements);
}

std::vector<std::string> CheckReport::flags() const {
  std::vector<std::string> out;
  if (findings.empty()) return out;
  const OpFinding& verdict = findings.front();
  const auto places = std::count_if(findings.begin(), findings.end(), [&](const OpFinding& f) {
    return f.op == verdict.op && f.kernel == verdict.kernel;
  });
  for (const KernelTrial& trial : trials)
    if (trial.passes && !trial.planned)
      out.push_back("--kernel " + (places > 1 ? verdict.op : verdict.place) + "=" + trial.kernel);
  const bool of_cache = verdict.op == to_string(Op::KvWrite) || verdict.op == to_string(Op::MlaAttend);
  for (const CacheTrial& cache : caches)
    if (of_cache && cache.passes) out.push_back("--kv " + cache.kv);
  return out;
}

std::vector<int32_t> check_prompt(const ModelConfig& config, int64_t longest) {
  const int64_t length = std::clamp<int64_t>(int64_t{config.index_topk} + 32, 16, std::max<int64_t>(longest, 16));
  std::vector<int32_t> ids;
  uint32_t x = 12345;  // any sequence without a pattern does
  for (int64_t i = 0; i < length; ++i) {
    x = x * 1664525u + 1013904223u;
    ids.push_back(static_cast<int32_t>((x >> 8) % static_cast<uint32_t>(config.vocab_size)));
  }
  return ids;
}

Result<CheckReport> check_ops(ModelRunner& runner, const Registry& registry, ThreadPool* pool,
                              const CheckOptions& options) {
  CheckReport report{.plan = runner.planned().plan.fingerprint()};
  const Witness witness(runner.planned().plan, registry, pool, witness_device(runner.executor()));
  Judge judge(runner, witness, options);
  PLUMB_TRY_STATUS(Walk(runner, judge, options).all(report));
  judge.finish(report);
  if (!options.first_only && judge.first() != nullptr && judge.first()->site() == report.findings.front().site)
    report.trials = try_kernels(witness, *judge.first(), report.findings.front());
  return report;
}

CheckReport check_record(const Plan& plan, const Registry& registry, ThreadPool* pool, const OpRecord& record,
                         const std::optional<WitnessDevice>& device) {
  const Witness witness(plan, registry, pool, device);
  const SiteDecl& decl = plan.sites[static_cast<size_t>(record.site())].decl;
  OpFinding finding{.site = record.site(),
                    .place = decl.name,
                    .op = to_string(decl.call.op),
                    .kernel = record.kernel().contract.name,
                    .layer = decl.layer,
                    .phase = "the capture",
                    .judgement = witness.judge(record)};
  const Judgement& judgement = finding.judgement;
  CheckReport report{.sites = {{.place = finding.place,
                                .op = finding.op,
                                .kernel = finding.kernel,
                                .layer = finding.layer,
                                .worst = judgement.worst,
                                .compared = judgement.compared,
                                .outside = judgement.outside}},
                     .trials = try_kernels(witness, record, finding),
                     .launches = 1,
                     .elements = judgement.compared,
                     .plan = plan.fingerprint()};
  if (!judgement.passes()) report.findings.push_back(std::move(finding));
  return report;
}

CheckReport with_capture(CheckReport capture, CheckReport model) {
  if (capture.passes()) {
    model.launches += capture.launches;
    model.elements += capture.elements;
    return model;
  }
  model.findings.insert(model.findings.begin(), capture.findings.begin(), capture.findings.end());
  model.trials = std::move(capture.trials);
  return model;
}

Result<LayerDrift> measure_drift(ModelRunner& reference, ModelRunner& runner, const std::vector<int32_t>& ids) {
  LayerDrift drift;
  TapRecorder exact({"output"}), have({"output"});
  for (auto [r, taps] : {std::pair(&reference, &exact), std::pair(&runner, &have)}) {
    r->reset();
    taps->attach(r->executor());
  }
  PLUMB_TRY(const Logits a, reference.feed(ids, static_cast<int64_t>(ids.size()), reference.planned().limits.rows));
  PLUMB_TRY(const Logits b, runner.feed(ids, static_cast<int64_t>(ids.size()), runner.planned().limits.rows));
  reference.executor().set_tap({});
  runner.executor().set_tap({});
  for (int layer = 0; layer < runner.config().num_hidden_layers; ++layer) {
    const std::string name = fmt::format("layers.{}.output", layer);
    const TapRecorder::Entry *want = exact.find(name), *got = have.find(name);
    if (want == nullptr || got == nullptr) continue;
    double square = 0, norm = 0;
    for (size_t i = 0; i < want->floats.size(); ++i) {
      const double w = static_cast<double>(want->floats[i]);
      square += (static_cast<double>(got->floats[i]) - w) * (static_cast<double>(got->floats[i]) - w);
      norm += w * w;
    }
    drift.relative.push_back(std::sqrt(square / std::max(norm, 1e-300)));
  }
  const auto vocab = static_cast<size_t>(runner.config().vocab_size);
  for (size_t at = 0; at + vocab <= a.size(); at += vocab)
    drift.logits.add(compare_logits({a.data() + at, vocab}, {b.data() + at, vocab}));
  reference.reset();
  runner.reset();
  return drift;
}

}  // namespace plumb

#include "engine/self_check.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "engine/answers.h"
#include "engine/check_sample.h"
#include "engine/generate.h"
#include "engine/op_watch.h"
#include "engine/probe.h"
#include "engine/weight_probe.h"
#include "guard/angle_watch.h"
#include "guard/path_bound.h"
#include "model/rank_link.h"

namespace plumb {
namespace {

using Logits = ProbeLogits;
constexpr int kAnswer = 8;           // tokens generated where paths are compared
constexpr int kReplayedAnswer = 16;  // and where ops are, as long as that costs little

class SelfChecks {
 public:
  explicit SelfChecks(const SelfCheckInput& input)
      : in_(input),
        plan_(input.forward.executor.plan()),
        vocab_(input.options.vocab_size > 0 ? input.options.vocab_size : input.forward.config.vocab_size),
        context_(effective_context(input.options, input.forward)),
        quick_(quick_sample(input.forward)),
        small_(is_small(input.forward)) {}

  std::vector<Check> run();

 private:
  using Body = void (SelfChecks::*)(Check&);
  void weights(Check& check);
  void layer_replay(Check& check);
  void decode_vs_prefill(Check& check);
  void long_context(Check& check);
  void batch_buckets(Check& check);
  void cache_paths(Check& check);
  void speculation(Check& check);
  void sampling(Check& check);
  void ranks(Check& check);
  void golden(Check& check);
  void text(Check& check);

  static void fail(Check& check, std::string problem) {
    check.verdict = Check::Verdict::Failed;
    if (check.problems.size() < 8) check.problems.push_back(std::move(problem));
  }
  static void skip(Check& check, std::string why) {
    check.verdict = Check::Verdict::Skipped;
    check.sample = std::move(why);
  }
  std::vector<int32_t> some_ids(int count, uint64_t seed) const { return plumb::some_ids(count, seed, vocab_); }
  GenerateRequest request(const char* id, std::vector<int32_t> prompt, int answer = kAnswer) const;
  std::unique_ptr<Probe> probe(Check& check, const std::function<void(EngineOptions&)>& change = {});
  // Ids of the answer; empty, and the check failed, when there was none.
  std::vector<int32_t> answer(Check& check, Probe& probe, GenerateRequest request);
  void compare(Check& check, const Logits& have, const Logits& want, const std::string& what, int last = INT_MAX);
  void decode_against_prefill(Check& check, int prompt_tokens);
  bool sampled(SiteId site) const { return in_.full || quick_[static_cast<size_t>(site)]; }
  bool many_rows() const { return in_.full || small_; }
  const RankLink* link() const { return in_.forward.link; }
  // Runs a failed check of whole paths once more, watching every op, to name the first that is wrong.
  void name_op(Check& check, Body body);

  const SelfCheckInput& in_;
  const Plan& plan_;
  const int vocab_, context_;
  const std::vector<bool> quick_;
  const bool small_;
};

GenerateRequest SelfChecks::request(const char* id, std::vector<int32_t> prompt, int answer) const {
  GenerateRequest r{.request_id = id, .prompt_ids = std::move(prompt), .max_tokens = answer};
  r.sampling.temperature = 0;
  return r;
}

std::unique_ptr<Probe> SelfChecks::probe(Check& check, const std::function<void(EngineOptions&)>& change) {
  std::string problem;
  auto made = Probe::start(in_, change, problem);
  if (made == nullptr) fail(check, problem);
  return made;
}

std::vector<int32_t> SelfChecks::answer(Check& check, Probe& probe, GenerateRequest request) {
  const std::string id = request.request_id;
  Result<Generated> result = generate(probe.engine(), std::move(request));
  if (result && !result->ids.empty()) return std::move(result->ids);
  fail(check, "request '" + id + "': " + (result ? std::string("no answer") : result.error().to_string()));
  return {};
}

// Positions up to `last` that both have.
void SelfChecks::compare(Check& check, const Logits& have, const Logits& want, const std::string& what, int last) {
  int compared = 0;
  for (const auto& [position, mine] : have) {
    const auto other = want.find(position);
    if (other == want.end() || position > last) continue;
    ++compared;
    double difference = 0, largest = 0;
    for (size_t i = 0; i < mine.size(); ++i) {
      const double d = std::fabs(static_cast<double>(mine[i]) - static_cast<double>(other->second[i]));
      difference = d <= difference ? difference : d;  // a NaN stays
      largest = std::max(largest, std::fabs(static_cast<double>(other->second[i])));
    }
    check.bound = std::max(check.bound, path_bound(plan_, largest));
    check.figure = difference <= check.figure ? check.figure : difference;
    if (!(difference <= path_bound(plan_, largest)))
      fail(check, what + ", position " + std::to_string(position) + ": logits differ by " + std::to_string(difference));
    if (!(largest > 0) || std::ranges::all_of(mine, [first = mine[0]](float x) { return x == first; }))
      fail(check, what + ", position " + std::to_string(position) + ": all logits are equal");
  }
  if (compared == 0) fail(check, what + ": no position to compare");
}

// ---- the checks ----

void SelfChecks::weights(Check& check) {
  check.unit = "tensors out of range";
  check.sample =
      std::to_string(in_.checked_tensors) +
      " tensors while loading: scales finite and above 0, no value that is not finite; checksums: the index has "
      "none";
}

void SelfChecks::layer_replay(Check& check) {
  const int tokens = many_rows() ? kReplayedAnswer : kAnswer;
  const int prompt = std::min(many_rows() ? 96 : 24, context_ - tokens);
  AngleWatch angles(plan_, in_.forward.config);
  in_.forward.executor.add_observer(angles);
  // With several ranks only what one computes for itself: they compare what ops that all compute alike have left.
  WeightProbe weights(small_ ? 1 + kReplayedAnswer : 2, [this](SiteId site) {
    return sampled(site) && (link() == nullptr || !is_replicated(plan_.sites[static_cast<size_t>(site)].decl.call.op));
  });
  std::map<SiteId, int> seen;
  watch_ops(
      in_, check,
      [&](const OpCall& call, const Site& site) -> RowRange {
        if (site.decl.call.op == Op::Sample || !sampled(call.site)) return {};  // the sampler has a check of its own
        if (!weights.running() && seen[call.site]++ >= (small_ ? 2 * kReplayedAnswer : in_.full ? 6 : 3)) return {};
        const int64_t rows = std::max<int64_t>(affordable_rows(site.decl.call, call.rows),
                                               std::min<int64_t>(call.rows, in_.full ? 4 : 1));
        return {.first = call.rows - rows, .count = rows};
      },
      [&] {
        // With drafts, so that the draft layer's ops are seen too.
        in_.forward.executor.add_observer(weights);  // behind the recorder, which is done with a launch by then
        const auto engine = probe(check, [&](EngineOptions& o) { o.draft_tokens = in_.options.draft_tokens; });
        if (engine) answer(check, *engine, request("replay", some_ids(prompt, 1), tokens));
      });
  in_.forward.executor.remove_observer(angles);
  in_.forward.executor.remove_observer(weights);
  check.sample += ", " + std::to_string(angles.angles()) + " rotary angles";
  if (angles.problem().empty()) return;
  fail(check, angles.problem());
  if (check.worst.deviation.empty()) check.worst.site = angles.site();
}

// Tokens one by one through the decode path, then prompts that end at some of them through prefill.
void SelfChecks::decode_against_prefill(Check& check, int prompt_tokens) {
  check.unit = "max |logit difference|";
  const auto engine = probe(check);
  if (!engine) return;
  std::vector<int32_t> tokens = some_ids(prompt_tokens, 2);
  const std::vector<int32_t> generated = answer(check, *engine, request("decode", tokens));
  if (generated.empty()) return;
  const Logits decoded = engine->logits_of("decode");
  for (const int more : {static_cast<int>(generated.size()) / 2, static_cast<int>(generated.size()) - 1}) {
    std::vector<int32_t> prompt = tokens;
    prompt.insert(prompt.end(), generated.begin(), generated.begin() + more);
    const std::string id = "prefill" + std::to_string(more);
    if (answer(check, *engine, request(id.c_str(), prompt, 1)).empty()) return;
    compare(check, engine->logits_of(id), decoded, "token " + std::to_string(more) + " of an answer");
  }
}

void SelfChecks::decode_vs_prefill(Check& check) {
  const int prompt = std::min(in_.full ? 80 : 24, context_ - kAnswer);
  check.sample = std::to_string(prompt) + " prompt tokens, " + std::to_string(kAnswer) + " generated";
  decode_against_prefill(check, prompt);
}

void SelfChecks::long_context(Check& check) {
  const int topk = in_.forward.config.index_topk;
  const int prompt = topk + (in_.full ? 96 : 24);
  if (prompt + kAnswer > context_)
    return skip(check, "the context of " + std::to_string(context_) +
                           " tokens never reaches sparse selection (index_topk " + std::to_string(topk) + ")");
  check.sample = std::to_string(prompt) + " prompt tokens, ";
  Check ops{.name = check.name};
  // Of the indexer nothing but its keys is computed for shorter prompts.
  const auto selects = [this](SiteId id) {
    const SiteDecl& decl = plan_.sites[static_cast<size_t>(id)].decl;
    return sampled(id) && (decl.call.op == Op::MlaAttend || decl.name.find(".indexer.") != std::string::npos);
  };
  WeightProbe weights(1, selects);
  std::map<SiteId, int> seen;
  watch_ops(
      in_, ops,
      [&](const OpCall& call, const Site& site) -> RowRange {
        if (!selects(call.site)) return {};
        const int64_t rows = weights.running() ? affordable_rows(site.decl.call, call.rows) : 1;
        if (!weights.running() && seen[call.site]++ >= (in_.full ? 8 : 4)) return {};
        return {.first = call.rows - rows, .count = rows};
      },
      [&] {
        in_.forward.executor.add_observer(weights);
        decode_against_prefill(check, prompt);
      });
  in_.forward.executor.remove_observer(weights);
  check.sample += ops.sample;
  check.worst = ops.worst;
  if (ops.verdict != Check::Verdict::Failed) return;
  check.verdict = Check::Verdict::Failed;
  check.figure = ops.figure;
  check.bound = ops.bound;
  check.unit = ops.unit;
}

void SelfChecks::batch_buckets(Check& check) {
  check.unit = "max |logit difference|";
  std::set<int> sizes;
  for (const Choice& choice : plan_.sites.front().choices)
    for (const int64_t rows : {choice.rows.m_lo, choice.rows.m_lo + 4, choice.rows.m_hi})
      if (rows >= 1 && rows <= in_.options.max_running) sizes.insert(static_cast<int>(rows));
  sizes.insert({1, std::min(2, in_.options.max_running), std::min(5, in_.options.max_running)});
  if (!in_.full) std::erase_if(sizes, [](int size) { return size > 8; });
  const int prompt = std::min(6, context_ - kAnswer);
  Logits alone;
  std::vector<int32_t> alone_ids;
  for (const int size : sizes) {
    const auto engine = probe(check);  // its buffers and pages are NaN wherever no row has been written
    if (!engine) return;
    std::vector<std::shared_ptr<TokenStream>> others;
    for (int i = 1; i < size; ++i) {
      others.push_back(std::make_shared<TokenStream>());
      const Status sent = engine->engine().submit(
          request("other", some_ids(prompt, 100 + static_cast<uint64_t>(i)), kAnswer + 4), others.back());
      if (!sent) fail(check, sent.error().to_string());
    }
    const std::vector<int32_t> ids = answer(check, *engine, request("one", some_ids(prompt, 3)));
    if (ids.empty()) return;
    const Logits logits = engine->logits_of("one");
    if (size == 1) alone = logits, alone_ids = ids;
    if (size > 1)
      compare(check, logits, alone, "batch of " + std::to_string(size), last_common(prompt, ids, alone_ids));
    check.sample += (check.sample.empty() ? "batches of " : ", ") + std::to_string(size);
  }
}

void SelfChecks::cache_paths(Check& check) {
  check.unit = "max |logit difference|";
  const int page = in_.forward.cache.geometry().page_tokens;
  const int prompt = 3 * page - 6;  // a fourth page before the answer ends
  if (prompt + 4 * kAnswer > context_ || in_.forward.cache.pages() < 7)
    return skip(check, "the context is shorter than a few pages of the cache");
  const std::vector<int32_t> ids = some_ids(prompt, 4);
  auto engine = probe(check);
  if (!engine) return;
  const std::vector<int32_t> want_ids = answer(check, *engine, request("plain", ids));
  const Logits want = engine->logits_of("plain");
  engine.reset();
  const auto same = [&](Probe& other, const char* id, const std::string& what) {
    const std::vector<int32_t> got = answer(check, other, request(id, ids));
    compare(check, other.logits_of(id), want, what, last_common(prompt, got, want_ids));
    if (path_bound(plan_, 1) == 0 && got != want_ids) fail(check, what + ": other tokens");
    check.sample += (check.sample.empty() ? "" : ", ") + what;
  };
  engine = probe(check, [](EngineOptions& o) { o.prefix_cache = true; });
  if (!engine) return;
  answer(check, *engine, request("first", ids));
  same(*engine, "hit", "prefix-cache hit");
  if (engine->engine().stats().cached_tokens == 0) fail(check, "the prefix cache gave nothing to a repeated prompt");
  engine.reset();
  for (const int chunk : in_.full ? std::vector{1, 7, 64, 1000} : std::vector{7, 64}) {
    if (chunk > in_.options.max_batch_tokens) continue;
    engine = probe(check, [&](EngineOptions& o) { o.chunk_tokens = chunk; });
    if (!engine) return;
    same(*engine, "chunked", "chunks of " + std::to_string(chunk));
    engine.reset();
  }
  if (in_.options.max_running < 2) return;
  // Two sequences of three pages and one page to spare: the older takes it first, the younger gives way and resumes. On
  // a busy machine the older can have ended before the younger comes: then once more.
  const std::string covered = check.sample;
  for (int attempt = 0; attempt < 5; ++attempt) {
    engine = probe(check, [](EngineOptions& o) { o.page_limit = std::min<int64_t>(o.page_limit, 7); });
    if (!engine) return;
    const auto older = std::make_shared<TokenStream>();
    const Status sent = engine->engine().submit(request("older", some_ids(3 * page - 3, 5), 3 * kAnswer), older);
    if (!sent) return fail(check, sent.error().to_string());
    check.sample = covered;
    same(*engine, "resumed", "preemption");
    if (engine->engine().stats().preemptions > 0) return;
    engine.reset();
  }
  check.sample = covered + " (no sequence gave way in five attempts)";
}

void SelfChecks::speculation(Check& check) {
  if (in_.options.draft_tokens == 0) return skip(check, "speculation is off");
  check.unit = "tokens that differ";
  const int answer_tokens = in_.full ? 64 : 24;
  const int prompt = 16;
  if (prompt + answer_tokens > context_) return skip(check, "the context is too short");
  for (uint64_t seed = 20; seed < (in_.full ? 24u : 21u); ++seed) {
    auto engine = probe(check);
    if (!engine) return;
    const std::vector<int32_t> want = answer(check, *engine, request("plain", some_ids(prompt, seed), answer_tokens));
    const Logits logits = engine->logits_of("plain");
    engine.reset();
    engine = probe(check, [&](EngineOptions& o) { o.draft_tokens = in_.options.draft_tokens; });
    if (!engine) return;
    const std::vector<int32_t> have = answer(check, *engine, request("drafted", some_ids(prompt, seed), answer_tokens));
    if (near_tie(plan_, logits, prompt, have, want)) continue;
    size_t differ = have.size() == want.size() ? 0 : 1;
    for (size_t i = 0; i < std::min(have.size(), want.size()); ++i) differ += have[i] != want[i] ? 1 : 0;
    check.figure += static_cast<double>(differ);
    if (differ > 0) fail(check, "greedy text with drafts differs from that without");
    check.sample = std::to_string(seed - 19) + " prompts of " + std::to_string(answer_tokens) + " tokens";
  }
}

void SelfChecks::sampling(Check& check) {
  check.unit = "largest error of a probability told";
  check.bound = 1e-4;
  const int prompt = std::min(12, context_ - 16);
  const auto engine = probe(check);
  if (!engine) return;
  const auto draw = [&](const char* id, uint64_t seed) {
    GenerateRequest r = request(id, some_ids(prompt, 6), 16);
    r.sampling.temperature = 1;
    r.sampling.seed = seed;
    r.sampling.logprobs = 1;
    return generate(engine->engine(), std::move(r));
  };
  const Result<Generated> first = draw("first", 11), again = draw("again", 11), other = draw("other", 12);
  for (const auto* result : {&first, &again, &other})
    if (!*result) return fail(check, result->error().to_string());
  if (first->ids != again->ids) fail(check, "the same seed drew other tokens");
  int row = 0;
  for (const auto& [position, logits] : engine->logits_of("first")) {
    const float largest = *std::ranges::max_element(logits.begin(), logits.begin() + vocab_);
    double sum = 0;
    for (int i = 0; i < vocab_; ++i)
      sum += std::exp(static_cast<double>(logits[static_cast<size_t>(i)]) - static_cast<double>(largest));
    if (std::ranges::all_of(logits, [first = logits[0]](float x) { return x == first; }))
      fail(check, "all logits are equal");
    const TokenEvent& event = first->events[static_cast<size_t>(row++)];
    if (event.id < 0) continue;
    // What the server says of the drawn token, against the logits it was drawn from.
    const double mine =
        static_cast<double>(logits[static_cast<size_t>(event.id)]) - static_cast<double>(largest) - std::log(sum);
    const double off = std::fabs(std::exp(mine) - std::exp(static_cast<double>(event.logprob.logprob)));
    check.figure = off <= check.figure ? check.figure : off;
    if (!(off <= check.bound))
      fail(check, "position " + std::to_string(position) + ": the probability of the drawn token is another");
  }
  check.sample = "48 draws at temperature 1, 16 of them twice with one seed";
}

// The link compares what ops that every rank computes alike have left, here in each step of a prompt and its answer.
void SelfChecks::ranks(Check& check) {
  if (link() == nullptr) return skip(check, "one rank: nothing is replicated");
  check.unit = "ops with other bits than rank 0's";
  const uint64_t before = link()->watched_steps();
  const auto engine = probe(check, [this](EngineOptions& o) { o.draft_tokens = in_.options.draft_tokens; });
  if (engine) answer(check, *engine, request("ranks", some_ids(std::min(24, context_ - kAnswer), 7)));
  check.sample = std::to_string(link()->watched_steps() - before) + " steps of " +
                 std::to_string(link()->comm().size()) + " ranks, every op that all compute alike";
  if (!link()->failed()) return;
  check.figure = 1;
  check.problems.clear();
  fail(check, link()->comm().failure()->what);
}

void SelfChecks::golden(Check& check) {
  if (!in_.golden_problem.empty()) return fail(check, in_.golden_problem);
  if (in_.golden == nullptr)
    return skip(check, "no " + std::string(kGoldenFile) + " beside the model (plumb golden make)");
  check.unit = "max |logit difference|";
  const std::string kv = to_string(in_.forward.cache.geometry().latent);
  const auto bound = in_.golden->bounds.find(kv);
  if (bound == in_.golden->bounds.end()) return skip(check, "the golden file has no bound for a " + kv + " cache");
  check.bound = bound->second;
  int positions = 0;
  for (const GoldenPrompt& prompt : in_.golden->prompts) {
    if (static_cast<int>(prompt.ids.size()) >= context_) continue;
    const auto engine = probe(check);
    if (!engine) return;
    for (const GoldenPosition& p : prompt.positions) {
      std::vector<int32_t> ids(prompt.ids.begin(), prompt.ids.begin() + p.position + 1);
      const std::string id = "golden" + std::to_string(p.position);
      if (answer(check, *engine, request(id.c_str(), std::move(ids), 1)).empty()) return;
      const Logits all = engine->logits_of(id);
      const std::vector<float>& logits = all.at(p.position);
      for (size_t i = 0; i < p.ids.size(); ++i) {
        const double d =
            std::fabs(static_cast<double>(logits[static_cast<size_t>(p.ids[i])]) - static_cast<double>(p.logits[i]));
        check.figure = d <= check.figure ? check.figure : d;
      }
      ++positions;
    }
  }
  check.sample = std::to_string(positions) + " positions of " + std::to_string(in_.golden->prompts.size()) + " prompts";
  if (!(check.figure <= check.bound))
    fail(check, "logits are further from the golden file's than a " + kv + " cache explains");
}

void SelfChecks::text(Check& check) {
  if (in_.texts.empty()) return skip(check, "no verify.jsonl beside the model and no --verify-file");
  check.unit = "wrong answers";
  const auto engine = probe(check, [this](EngineOptions& o) {
    o.page_limit = 0;
    o.prefix_cache = in_.options.prefix_cache;
    o.draft_tokens = in_.options.draft_tokens;
  });
  if (!engine) return;
  for (const TextCase& one : in_.texts) {
    GenerateRequest r = request(one.name.c_str(), one.prompt_ids, one.max_tokens);
    r.stop_ids = one.stop_ids;
    const Result<Generated> result = generate(engine->engine(), std::move(r));
    const std::string got = result ? one.to_text(result->ids) : result.error().to_string();
    if (result && got.find(one.expected) != std::string::npos) continue;
    check.figure += 1;
    fail(check, one.name + ": expected '" + one.expected + "', the answer is '" + got.substr(0, 300) + "'");
  }
  check.sample = std::to_string(in_.texts.size()) + " prompts";
}

void SelfChecks::name_op(Check& check, Body body) {
  constexpr auto kPatience = std::chrono::seconds(60);
  const auto begin = std::chrono::steady_clock::now();
  Check again{.name = check.name}, ops{.name = check.name};
  int64_t turn = 0;
  watch_ops(
      in_, ops,
      [&](const OpCall& call, const Site&) -> RowRange {
        if (std::chrono::steady_clock::now() - begin > kPatience) return {};
        return {.first = turn++ % call.rows, .count = 1};
      },
      [&] { (this->*body)(again); });
  if (ops.verdict == Check::Verdict::Failed) check.worst = ops.worst;
}

std::vector<Check> SelfChecks::run() {
  const std::pair<const char*, Body> all[] = {{"weights", &SelfChecks::weights},
                                              {"ranks", &SelfChecks::ranks},
                                              {"layer_replay", &SelfChecks::layer_replay},
                                              {"decode_vs_prefill", &SelfChecks::decode_vs_prefill},
                                              {"long_context", &SelfChecks::long_context},
                                              {"batch_buckets", &SelfChecks::batch_buckets},
                                              {"cache_paths", &SelfChecks::cache_paths},
                                              {"speculation", &SelfChecks::speculation},
                                              {"sampling", &SelfChecks::sampling},
                                              {"golden", &SelfChecks::golden},
                                              {"text", &SelfChecks::text}};
  std::vector<Check> checks;
  for (const auto& [name, body] : all) {
    if (in_.progress) in_.progress(name, checks.size() + 1, std::size(all));
    Check check{.name = name};
    const auto begin = std::chrono::steady_clock::now();
    (this->*body)(check);
    const bool paths = body != &SelfChecks::weights && body != &SelfChecks::ranks && body != &SelfChecks::golden &&
                       body != &SelfChecks::text;
    if (paths && !in_.first_only && check.verdict == Check::Verdict::Failed && check.worst.site.empty())
      name_op(check, body);
    check.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    checks.push_back(std::move(check));
    if (in_.first_only && checks.back().verdict == Check::Verdict::Failed) break;
    if (link() != nullptr && link()->failed()) break;  // nothing more can be computed
  }
  Probe::clean_up(in_);
  return checks;
}

}  // namespace

std::vector<Check> run_self_checks(const SelfCheckInput& input) { return SelfChecks(input).run(); }

}  // namespace plumb

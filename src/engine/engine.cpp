#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/log.h"
#include "engine/invariants.h"
#include "engine/record_steps.h"
#include "model/buffers.h"
#include "model/rank_link.h"

namespace plumb {

namespace {

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

constexpr int kLikelyAnswerTokens = 1024;      // of a request's cost for its client, when it allows for more
constexpr int64_t kFirstStepUs = 120'000'000;  // for a step before any has been timed

// The page table is as wide as the plan's context, whatever the engine's: engines over the same buffers share
// recordings.
StepSizes step_sizes(const EngineOptions& options, const Forward& forward) {
  const int page_tokens = forward.cache.geometry().page_tokens;
  return {.rows = options.max_batch_tokens,
          .logit_rows = logit_rows(options),
          .sequences = options.max_running,
          .pages_per_sequence = static_cast<int>(pages_for(forward.buffers.limits.context, page_tokens)),
          .page_tokens = page_tokens};
}

TokenLogprob floored(int32_t id, float logprob) { return {.id = id, .logprob = std::max(logprob, -9999.0f)}; }

std::vector<TokenLogprob> best_of(const SampleOut& out, int count) {
  std::vector<TokenLogprob> best;
  for (int i = 0; i < count && i < static_cast<int>(std::size(out.top_ids)); ++i) {
    if (out.top_ids[i] >= 0) best.push_back(floored(out.top_ids[i], out.top_logprobs[i]));
  }
  return best;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::start(const Forward& forward, EngineOptions options) {
  PLUMB_TRY_STATUS(check_options(options, forward));
  if (options.vocab_size <= 0) options.vocab_size = forward.config.vocab_size;
  std::unique_ptr<Engine> engine(new Engine(forward, std::move(options)));
  const RecordedSteps recorded = record_steps(engine->forward_, engine->options_, engine->builder_.sizes());
  if (recorded.shapes > 0)
    log_info(fmt::format("recorded decode steps of {} shapes in {:.2f} s", recorded.shapes, recorded.seconds));
  engine->thread_ = std::thread([raw = engine.get()] { raw->loop(); });
  return engine;
}

Engine::Engine(const Forward& forward, EngineOptions options)
    : forward_(forward),
      options_(std::move(options)),
      max_context_(effective_context(options_, forward)),
      inbox_(static_cast<size_t>(options_.max_running + options_.queue_limit)),
      clock_(options_.stuck_step_ms * 1000, kFirstStepUs),
      pool_(usable_pages(options_, forward)),
      cache_(pool_, forward.cache.geometry().page_tokens, options_.draft_tokens > 0),
      builder_(step_sizes(options_, forward)),
      sampler_(forward_.executor, forward_.sites.sample, options_.vocab_size, builder_.sizes().logit_rows),
      guard_(forward_.executor, options_.guard, builder_.sizes().rows, forward_.buffers.report) {
  limits_ = {.max_running = options_.max_running,
             .max_batch_tokens = options_.max_batch_tokens,
             .chunk_tokens = options_.chunk_tokens,
             .prompt_logit_rows = kPromptLogitRows,
             .page_tokens = forward.cache.geometry().page_tokens,
             .prefix_cache = options_.prefix_cache};
  if (options_.draft_tokens > 0) {
    drafter_ = std::make_unique<Drafter>(forward_, options_.draft_tokens, builder_.sizes());
  }
  const size_t most = inbox_.capacity(), running = static_cast<size_t>(options_.max_running);
  queues_.running.reserve(running + 1);
  queues_.waiting.reserve(most);
  sequences_.reserve(most);
  to_wake_.reserve(most);
  batch_.items.reserve(running);
  batch_.preempted.reserve(running);
  batch_.admitted.reserve(running);
  batch_.prompts.reserve(running);
  results_.reserve(running);
  counts_.pages_total = pool_.total();
  publish();
}

Engine::~Engine() {
  draining_ = true;
  abort_all_ = true;
  stop_ = true;
  inbox_.wake();
  if (thread_.joinable()) thread_.join();
}

Status Engine::submit(GenerateRequest request, std::shared_ptr<TokenStream> stream) {
  PLUMB_TRY_STATUS(check_request(request, forward_.config, max_context_));
  // Counted before the look at draining_, so drain() can't miss a request that is on its way in.
  const int64_t before = unfinished_.fetch_add(1);
  if (lost_) {
    unfinished_.fetch_sub(1);
    return *lost_why_;
  }
  if (draining_) {
    unfinished_.fetch_sub(1);
    return Error{Code::Environment, "the engine takes no new requests", "it is draining", {"another server"}};
  }
  const bool room = before < static_cast<int64_t>(inbox_.capacity());
  if (!room || !inbox_.try_push({.request = std::move(request), .stream = std::move(stream)})) {
    unfinished_.fetch_sub(1);
    return Error{Code::Environment,
                 "the queue is full",
                 std::to_string(before) + " requests run or wait already",
                 {"trying again later"}};
  }
  return {};
}

EngineStats Engine::stats() const {
  const SharedStats& s = shared_;
  return {.running = s.running,
          .waiting = s.waiting,
          .pages_total = pool_.total(),
          .pages_free = s.pages_free,
          .pages_cached = s.pages_cached,
          .steps = s.steps,
          .prompt_tokens = s.prompt_tokens,
          .generated_tokens = s.generated_tokens,
          .cached_tokens = s.cached_tokens,
          .preemptions = s.preemptions,
          .aborts = s.aborts,
          .numerical_faults = s.numerical_faults,
          .drafts_proposed = s.drafts_proposed,
          .drafts_accepted = s.drafts_accepted,
          .step_seconds = s.step_seconds,
          .op_seconds = s.op_seconds,
          .guard = guard_.stats()};
}

bool Engine::alive() const { return !lost_ && !clock_.overdue(now_us()); }

void Engine::drain(int64_t timeout_ms) {
  draining_ = true;
  const int64_t deadline = now_us() + timeout_ms * 1000;
  while (unfinished_ > 0) {
    if (now_us() >= deadline) abort_all_ = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Engine::loop() {
  if (const auto enter = forward_.executor.memory().enter; enter != nullptr) enter(forward_.executor.stream());
  watch_ranks(true);
  while (true) {
    if (sequences_.empty()) {
      if (stop_ && unfinished_ == 0) return watch_ranks(false);
      inbox_.wait_pop_all(arrivals_, kIdle);
      if (arrivals_.empty() && forward_.link != nullptr) forward_.link->beat();
    } else {
      inbox_.pop_all(arrivals_);
    }
    ++round_;
    take_arrivals();
    drop_unwanted();
    end_drifted();
    if (!sequences_.empty() && !lost_) step();
    if (ranks_failed()) end_all_lost();
    publish();
    wake_streams();
  }
}

void Engine::take_arrivals() {
  for (Submission& submission : arrivals_) {
    auto sequence = std::make_unique<Sequence>();
    Sequence& s = *sequence;
    s.arrival = next_arrival_++;
    s.request = std::move(submission.request);
    s.stream = std::move(submission.stream);
    s.prompt_tokens = static_cast<int>(s.request.prompt_ids.size());
    s.turn = turns_.place(s.request.client, s.prompt_tokens + std::min(s.request.max_tokens, kLikelyAnswerTokens));
    s.usage.prompt_tokens = s.prompt_tokens;
    s.tokens.reserve(static_cast<size_t>(s.prompt_tokens) + static_cast<size_t>(s.request.max_tokens));
    s.tokens = s.request.prompt_ids;
    s.pages.reserve(static_cast<size_t>(pages_for(s.prompt_tokens + s.request.max_tokens, limits_.page_tokens)));
    s.adjustments.init(s.request.sampling, s.request.prompt_ids, s.request.max_tokens, forward_.config.vocab_size);
    s.request.prompt_ids = {};  // `tokens` has them
    if (s.request.grammar) s.cursor = std::make_unique<grammar::Cursor>(s.request.grammar);
    if (s.request.prompt_logprobs >= 0) s.stream->prompt_logprobs.reserve(static_cast<size_t>(s.prompt_tokens));
    sequences_.push_back(std::move(sequence));
    insert_sorted(queues_.waiting, &s);
  }
  arrivals_.clear();
}

void Engine::drop_unwanted() {
  const int64_t now = now_us();
  for (size_t i = sequences_.size(); i > 0; --i) drop_if_unwanted(*sequences_[i - 1], now);
  wipe_quarantine();  // before the scheduler counts pages: there may be no other step to do it
}

void Engine::drop_if_unwanted(Sequence& sequence, int64_t now_us) {
  const bool late = sequence.request.deadline_us > 0 && now_us >= sequence.request.deadline_us;
  TokenEvent last{.finish = FinishReason::Abort};
  if (!sequence.stream->cancelled()) {
    if (!abort_all_ && !late) return;
    last.error = Error{Code::Cancelled,
                       "the request was aborted",
                       abort_all_ ? "the server is shutting down" : "its deadline has passed",
                       {}};
  }
  ++counts_.aborts;
  finish(sequence, std::move(last));
}

void Engine::step() {
  const int64_t started = now_us();
  const uint64_t op_ns = forward_.executor.kernel_ns();
  schedule(queues_, cache_, limits_, batch_);
  account_schedule();
  if (batch_.items.empty()) return;
  double work = 0;
  for (const BatchItem& item : batch_.items) work += item.count * StepClock::work_of_row(item.begin + item.count);
  clock_.begin(started, work);
  const StepInput& input = builder_.build(batch_.items);
  guard_.begin_step(counts_.steps + 1, batch_.rows, [this](int row) { return owner_of(row); });
  const StepOutput output = forward(forward_, input);
  if (ranks_failed()) return;  // nothing that came out is to be believed
  ++counts_.steps;
  if (options_.observer) {
    options_.observer({.number = counts_.steps, .items = batch_.items, .input = input, .output = output});
  }
  sample(output);
  const Tensor report = forward_.executor.to_host(output.report, report_rows_);
  if (ranks_failed()) return;  // on a device the step is over only now
  if (guard_.note(report) || (guard_.watches_stream() && sampler_.any_poisoned()))
    guard_.watch_again([&] { forward(forward_, input); });
  results_.clear();
  for (const BatchItem& item : batch_.items) results_.push_back(settle(item, report));
  if (drafter_) {
    drafter_->run(builder_, batch_.items, results_, output, sampler_, [this](const StepOutput& pass) {
      if (guard_.watches_stream()) guard_.note(forward_.executor.to_host(pass.report, draft_rows_));
    });
    record_draft_faults();
  }
  for (const BatchItem& item : batch_.items) end_settled(item);
  wipe_quarantine();
  if (options_.check_invariants) {
    const std::string broken = broken_invariant(queues_, cache_, limits_);
    PLUMB_CHECK(broken.empty(), broken);
  }
  const int64_t ended = now_us();
  clock_.end(ended);
  counts_.step_seconds += static_cast<double>(ended - started) * 1e-6;
  counts_.op_seconds += static_cast<double>(forward_.executor.kernel_ns() - op_ns) * 1e-9;
}

void Engine::account_schedule() {
  counts_.preemptions += batch_.preempted.size();
  for (Sequence* s : batch_.preempted) builder_.free_slot(*s);
  for (Sequence* s : batch_.admitted) {
    turns_.began(s->turn);
    if (s->admitted_before) continue;
    s->admitted_before = true;
    s->usage.cached_tokens = s->computed;
    counts_.cached_tokens += static_cast<uint64_t>(s->computed);
    counts_.prompt_tokens += static_cast<uint64_t>(s->prompt_tokens);
  }
}

// A row's logits either score the known token after it or draw the next one.
void Engine::sample(const StepOutput& output) {
  sampler_.clear();
  for (const BatchItem& item : batch_.items) {
    const Sequence& s = *item.sequence;
    for (int row = item.first_logit; row < item.count; ++row) {
      const int ahead = item.begin + row + 1 - s.known();
      if (ahead < 0) {
        sampler_.add_score(s, item.begin + row + 1);
      } else {
        sampler_.add_draw(s, ahead);
      }
    }
  }
  sampler_.run(output.logits);
}

ItemResult Engine::settle(const BatchItem& item, const Tensor& report) {
  Sequence& s = *item.sequence;
  const int known = s.known();
  ItemResult result{};
  for (int row = 0; row < item.count && s.ending.finish == FinishReason::None; ++row) {
    const int ahead = item.begin + row - known;
    if (ahead >= 0 &&
        s.tokens[static_cast<size_t>(item.begin) + static_cast<size_t>(row)] != s.drafts[static_cast<size_t>(ahead)])
      break;
    if (ahead >= 0) ++s.usage.accepted_draft_tokens;
    if (!settle_row(item, row, *report.row_i32(item.first_row + row) != 0)) break;
    result.valid_rows = row + 1;
  }
  const int accepted = std::max(0, item.begin + result.valid_rows - known);
  s.usage.rejected_draft_tokens += s.draft_count - accepted;
  counts_.drafts_proposed += static_cast<uint64_t>(s.draft_count);
  counts_.drafts_accepted += static_cast<uint64_t>(accepted);
  s.draft_count = 0;
  result.wants_drafts = s.ending.finish == FinishReason::None && s.decoding() && !s.adjustments.follows_output() &&
                        s.request.max_tokens - s.generated() > 1;
  return result;
}

// False: the row is poisoned, and the sequence ends.
bool Engine::settle_row(const BatchItem& item, int row, bool finite) {
  Sequence& s = *item.sequence;
  const int position = item.begin + row;
  if (const RowFault* fault = guard_.fault(item.first_row + row)) {
    record_fault(s, *fault, position);
    return false;
  }
  const SampleOut* drawn = row < item.first_logit ? nullptr : &sampler_.out(item.output_row + row - item.first_logit);
  if (drawn != nullptr && drawn->poisoned) {
    record_fault(s, unseen_fault(forward_.sites.sample, item.first_row + row, "logits"), position);
    return false;
  }
  if (!finite) {
    record_fault(s, unseen_fault(forward_.sites.final_norm, item.first_row + row, "y"), position);
    return false;
  }
  s.computed = position + 1;
  if (drawn == nullptr) return true;
  if (position + 1 < s.known()) {
    score_prompt(s, *drawn, s.tokens[static_cast<size_t>(position) + 1]);
  } else {
    accept_token(s, *drawn);
  }
  return true;
}

void Engine::accept_token(Sequence& s, const SampleOut& drawn) {
  s.tokens.push_back(drawn.id);
  s.adjustments.on_generated(drawn.id);
  ++s.usage.completion_tokens;
  ++counts_.generated_tokens;
  TokenEvent event{.id = drawn.id};
  if (s.request.sampling.logprobs >= 0) {
    event.logprob = floored(drawn.id, drawn.logprob);
    event.top = best_of(drawn, s.request.sampling.logprobs);
  }
  const std::vector<int32_t>& stops = s.request.stop_ids;
  if (std::find(stops.begin(), stops.end(), drawn.id) != stops.end()) {
    event.id = -1;
    event.finish = FinishReason::Stop;
    event.stop_id = drawn.id;
    s.ending = std::move(event);
    return;
  }
  if (s.cursor && !follow_grammar(s, drawn.id, event)) {
    s.ending = std::move(event);
  } else if (s.generated() >= s.request.max_tokens) {
    event.finish = FinishReason::Length;
    s.ending = std::move(event);
  } else {
    push(s, std::move(event));
  }
}

// Moves on in the grammar; false when the text ends here: nothing can follow, and `event` says how that is.
bool Engine::follow_grammar(Sequence& s, int32_t id, TokenEvent& event) {
  const bool taken = s.cursor->accept(id);
  const grammar::Cursor::Next next = s.cursor->next({}, sampler_.grammar_scratch());
  if (taken && next.possible) return true;
  event.finish = taken && next.may_end ? FinishReason::Stop : FinishReason::Error;
  if (event.finish == FinishReason::Error) {
    event.error = Error{Code::Unsupported,
                        "the text cannot go on under the constraint of the request",
                        "no token of the vocabulary continues it, or the constraint is too ambiguous to tell in time",
                        {}};
  }
  return false;
}

void Engine::score_prompt(Sequence& s, const SampleOut& scored, int32_t id) {
  ++s.prompt_logprobs_done;
  const float logprob = scored.id == id ? scored.logprob : -9999.0f;  // an id that is never drawn
  s.stream->prompt_logprobs.push_back(
      {.token = floored(id, logprob), .top = best_of(scored, s.request.prompt_logprobs)});
}

// Full pages whose rows are all computed and clean. With an MTP layer this comes after its pass, which has filled their
// last slots.
void Engine::share_pages(Sequence& s) {
  if (!options_.prefix_cache || s.poisoned) return;
  while (!s.tree_closed && (s.tree_pages + 1) * limits_.page_tokens <= s.computed &&
         cache_.tokens_needed(s.tree_pages) <= s.known()) {
    const int index = s.tree_pages;
    if (!cache_.insert(s.request.cache_salt, s.tokens, s.pages, index)) {
      s.tree_closed = true;
      return;
    }
    s.synced_pages = std::min(s.synced_pages, index);  // it may be another page now
    ++s.tree_pages;
  }
}

void Engine::end_settled(const BatchItem& item) {
  Sequence& s = *item.sequence;
  share_pages(s);
  if (s.ending.finish != FinishReason::None) finish(s, std::move(s.ending));
}

void Engine::finish(Sequence& s, TokenEvent last) {
  if (s.poisoned) {
    // What it read may be the source as well as what it wrote: none of it is found by others any more.
    for (const int32_t page : s.pages) cache_.mark_suspect(page);
  }
  release_pages(s, cache_);
  builder_.free_slot(s);
  std::erase(queues_.running, &s);
  std::erase(queues_.waiting, &s);
  s.stream->usage = s.usage;
  push(s, std::move(last));
  const auto owner = std::ranges::find_if(sequences_, [&](const auto& owned) { return owned.get() == &s; });
  std::swap(*owner, sequences_.back());
  sequences_.pop_back();
  ++ended_;
}

void Engine::push(Sequence& s, TokenEvent event) {
  s.stream->push(std::move(event));
  if (s.woken_in == round_) return;
  s.woken_in = round_;
  to_wake_.push_back(s.stream);
}

void Engine::wake_streams() {
  for (const std::shared_ptr<TokenStream>& stream : to_wake_) {
    if (stream->on_ready) stream->on_ready();
  }
  to_wake_.clear();
  // Only now: who waits for the end of all requests may tear down what on_ready uses.
  unfinished_.fetch_sub(ended_);
  ended_ = 0;
}

void Engine::publish() {
  shared_.running = static_cast<int>(queues_.running.size());
  shared_.waiting = static_cast<int>(queues_.waiting.size());
  shared_.pages_free = pool_.free();
  shared_.pages_cached = cache_.cached();
  shared_.steps = counts_.steps;
  shared_.prompt_tokens = counts_.prompt_tokens;
  shared_.generated_tokens = counts_.generated_tokens;
  shared_.cached_tokens = counts_.cached_tokens;
  shared_.preemptions = counts_.preemptions;
  shared_.aborts = counts_.aborts;
  shared_.numerical_faults = counts_.numerical_faults;
  shared_.drafts_proposed = counts_.drafts_proposed;
  shared_.drafts_accepted = counts_.drafts_accepted;
  shared_.step_seconds = counts_.step_seconds;
  shared_.op_seconds = counts_.op_seconds;
}

}  // namespace plumb

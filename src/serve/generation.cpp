#include "serve/generation.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <random>

#include "serve/strict_json.h"

namespace plumb {

namespace {

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// 0: none was asked for. Nothing when the header's value is no number of milliseconds that fits.
std::optional<int64_t> deadline_of(std::string_view header) {
  if (header.empty()) return 0;
  int64_t milliseconds = 0;
  const char* end = header.data() + header.size();
  const auto result = std::from_chars(header.data(), end, milliseconds);
  if (result.ec != std::errc() || result.ptr != end || milliseconds < 1 || milliseconds > 1'000'000'000)
    return std::nullopt;
  return now_us() + milliseconds * 1000;
}

uint64_t random_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

ApiError too_long(int64_t window, int64_t prompt, int64_t wanted, bool chat) {
  const std::string in = chat ? "messages" : "prompt";
  std::string text = "This model's maximum context length is " + std::to_string(window) + " tokens. ";
  if (prompt >= window) {
    text += "The " + in + " came to " + std::to_string(prompt) + " tokens, which leaves no room for an answer";
    if (wanted > 0) text += " of " + std::to_string(wanted);
    text += "; shorten the " + in + ".";
  } else {
    text += std::to_string(prompt + wanted) + " tokens were asked for: " + std::to_string(prompt) + " in the " + in +
            " and " + std::to_string(wanted) + " for the answer; shorten one of them.";
  }
  return bad_request(in, std::move(text), "context_length_exceeded");
}

}  // namespace

Generation::Generation(ServeContext& context, const ServedModel& model, std::shared_ptr<Exchange> exchange,
                       GenerationRequest request)
    : context_(context),
      model_(model),
      exchange_(std::move(exchange)),
      request_(std::move(request)),
      writer_(make_writer(response_facts())),
      late_prompt_(request_.echo && request_.common.sampling.logprobs >= 0) {}

ResponseFacts Generation::response_facts() const {
  const CommonFields& common = request_.common;
  int prompt_tokens = 0;
  for (const PromptInput& prompt : request_.prompts) prompt_tokens += static_cast<int>(prompt.ids.size());
  return {
      .endpoint = request_.endpoint,
      .id = answer_id(),
      .model = request_.model,
      .created =
          std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count(),
      .fingerprint = model_.services.fingerprint,
      .reasoning_field = context_.options.reasoning_field,
      .logprobs = common.sampling.logprobs >= 0,
      .top_logprobs = std::max(0, common.sampling.logprobs),
      .include_usage = common.stream && common.include_usage,
      .token_ids = common.return_token_ids,
      .prompt_tokens = prompt_tokens,
      .echo_json = request_.echo_json,
      .tokenizer = model_.services.tokenizer};
}

std::string Generation::answer_id() const {
  const std::string& request_id = exchange_->request().request_id;
  std::string id = request_id.starts_with("req-") ? request_id.substr(4) : request_id;
  switch (request_.endpoint) {
    case Endpoint::Chat:
      return "chatcmpl-" + id;
    case Endpoint::Completion:
      return "cmpl-" + id;
    case Endpoint::Messages:
      return "msg_" + id;
    case Endpoint::Responses:
      return "resp_" + id;
    case Endpoint::Generate:
      return request_.rid.empty() ? id : request_.rid;
  }
  return id;
}

void Generation::start() {
  submitted_ = std::chrono::steady_clock::now();
  std::optional<ApiError> error = check_lengths();
  if (!error) error = submit_all();
  if (error) return fail(*error);
  context_.running.add(shared_from_this(), exchange_, answer_id());
  begin_answer();
  on_tokens();  // what the engine pushed before on_wake was set
}

// ---- into the engine ----

std::optional<ApiError> Generation::check_lengths() {
  CommonFields& common = request_.common;
  const bool chat = is_chat();
  const int64_t window = model_.services.engine->max_context();
  const size_t total = request_.prompts.size() * static_cast<size_t>(common.n);
  if (total > static_cast<size_t>(context_.options.max_choices_total)) {
    return bad_request("n", std::to_string(total) + " choices were asked for, at most " +
                                std::to_string(context_.options.max_choices_total) + " work in one request");
  }
  for (const PromptInput& prompt : request_.prompts) {
    const auto size = static_cast<int64_t>(prompt.ids.size());
    if (size == 0)
      return bad_request(chat ? "messages" : "prompt", "the prompt is empty, the model needs at least one token");
    const int64_t wanted = request_.prompt_only ? 1 : common.max_tokens.value_or(0);
    if (size >= window || size + wanted > window) return too_long(window, size, common.max_tokens.value_or(0), chat);
    if (!common.max_tokens && common.min_tokens > window - size) {
      return too_long(window, size, common.min_tokens, chat);
    }
  }
  return std::nullopt;
}

GenerateRequest Generation::engine_request(const Choice& choice, int number) const {
  const CommonFields& common = request_.common;
  const PromptInput& prompt = request_.prompts[choice.prompt];
  GenerateRequest result;
  result.request_id = exchange_->request().request_id;
  result.prompt_ids = prompt.ids;
  result.sampling = common.sampling;
  result.sampling.seed = choice_seed(common.sampling.seed, number);
  const int rest = model_.services.engine->max_context() - static_cast<int>(prompt.ids.size());
  result.max_tokens = request_.prompt_only ? 1 : static_cast<int>(common.max_tokens.value_or(rest));
  result.min_tokens = common.min_tokens;
  if (!common.ignore_eos) result.stop_ids = model_.services.eos_ids;
  result.stop_ids.insert(result.stop_ids.end(), common.stop_token_ids.begin(), common.stop_token_ids.end());
  if (late_prompt_) result.prompt_logprobs = common.sampling.logprobs;
  result.grammar = request_.grammar;
  result.cache_salt = common.cache_salt;
  result.client = exchange_->client;
  result.priority = std::max(common.priority, exchange_->lowest_priority);
  result.deadline_us = deadline_us_;
  return result;
}

Generation::Choice Generation::make_choice(int index, size_t prompt) const {
  const CommonFields& common = request_.common;
  const bool chat = is_chat();
  ChoiceTextOptions options{
      .tokenizer = model_.services.tokenizer,
      .tags = model_.tags,
      .reasoning = request_.separate_reasoning ? request_.prompts[prompt].reasoning : ReasoningStart::Off,
      .markup = chat,
      .drop_tags = chat && request_.separate_reasoning,
      .tools = request_.tools,
      .one_call = request_.one_call,
      .stop = common.stop,
      .include_stop = common.include_stop_str_in_output,
      .stop_in_reasoning = request_.stop_in_reasoning,
      .skip_special = common.skip_special_tokens,
      .keep_token_ids = common.return_token_ids,
      .min_tokens = common.min_tokens};
  return {.index = index,
          .prompt = prompt,
          .stream = std::make_shared<TokenStream>(),
          .text = ChoiceText(std::move(options)),
          .whole = {.index = index}};
}

std::optional<ApiError> Generation::submit_all() {
  if (!request_.common.has_seed) request_.common.sampling.seed = random_seed();
  const std::string_view timeout = exchange_->request().header("x-request-timeout-ms");
  const std::optional<int64_t> deadline = deadline_of(timeout);
  if (!deadline)
    return bad_request("x-request-timeout-ms",
                       "the header 'x-request-timeout-ms' is '" + std::string(timeout) + "', expected 1 to 1000000000");
  deadline_us_ = *deadline;
  if (const int64_t most = context_.options.request_timeout_ms; most > 0) {
    const int64_t latest = now_us() + most * 1000;
    deadline_us_ = deadline_us_ == 0 ? latest : std::min(deadline_us_, latest);
  }
  choices_.reserve(request_.prompts.size() * static_cast<size_t>(request_.common.n));
  for (size_t prompt = 0; prompt < request_.prompts.size(); ++prompt) {
    for (int number = 0; number < request_.common.n; ++number) {
      Choice& choice = choices_.emplace_back(make_choice(static_cast<int>(choices_.size()), prompt));
      choice.stream->on_ready = [exchange = exchange_] { exchange->wake(); };
      const Status status = model_.services.engine->submit(engine_request(choice, number), choice.stream);
      if (status) continue;
      ApiError error = engine_error(status.error(), {});
      const bool full = status.error().code == Code::Environment;
      if (full && context_.state.load() == ServerState::Ready) {
        error = {.status = 429,
                 .message = status.error().what,
                 .type = "rate_limit_error",
                 .code = "queue_full",
                 .retry_after_s = 1};
      }
      return error;
    }
  }
  open_choices_ = choices_.size();
  return std::nullopt;
}

void Generation::begin_answer() {
  exchange_->on_wake = [self = shared_from_this()] { self->on_tokens(); };
  exchange_->on_disconnect = [self = shared_from_this()] {
    if (self->over_) return;
    self->over_ = true;
    self->cancel_all();
    self->record("abort");
  };
  if (!request_.common.stream) return;
  HttpResponse head{.content_type = "text/event-stream; charset=utf-8"};
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  if (const std::string list = ignored_fields_header(request_.common); !list.empty()) {
    head.headers.emplace_back("x-ignored-fields", list);
  }
  exchange_->begin_stream(std::move(head));
  for (Choice& choice : choices_) {
    exchange_->write(writer_->begin(choice.index));
    if (!request_.echo || late_prompt_) continue;
    choice.whole.prompt_text = request_.prompts[choice.prompt].text;
    choice.text_offset = count_characters(choice.whole.prompt_text);
    exchange_->write(writer_->echo(choice.index, choice.whole));
  }
}

// ---- out of the engine ----

void Generation::on_tokens() {
  for (Choice& choice : choices_) {
    if (over_) return;
    if (!choice.done) take(choice);
  }
  if (!over_ && open_choices_ == 0) finish();
}

void Generation::take(Choice& choice) {
  choice.stream->take(events_);
  time_tokens(choice);
  for (const TokenEvent& event : events_) {
    if (event.id >= 0 && !choice.stopped) on_token(choice, event);
    if (event.finish != FinishReason::None) on_end(choice, event);
    if (over_ || choice.done) return;
  }
  emit(choice);
}

// Tokens that came together share the time since those before them.
void Generation::time_tokens(Choice& choice) {
  const auto tokens = static_cast<int>(std::ranges::count_if(events_, [](const TokenEvent& e) { return e.id >= 0; }));
  if (tokens == 0) return;
  const int64_t now = now_us();
  if (choice.last_us != 0)
    context_.metrics.between_tokens(static_cast<double>(now - choice.last_us) * 1e-6 / tokens, tokens);
  choice.last_us = now;
}

void Generation::on_token(Choice& choice, const TokenEvent& event) {
  last_token_us_ = now_us();
  if (first_token_us_ == 0) {
    first_token_us_ = last_token_us_;
    first_token_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - exchange_->started()).count();
    context_.metrics.first_token(first_token_s_);
  }
  if (request_.prompt_only) return;
  if (choice.text.push(event, choice.pending)) return;
  choice.stopped = true;
  choice.stream->cancel();  // its last event brings the usage
}

void Generation::on_end(Choice& choice, const TokenEvent& event) {
  if (!choice.stopped && event.finish == FinishReason::Error) {
    const Error unknown{Code::Internal, "the engine ended the request without a reason", {}, {}};
    return fail(engine_error(event.error.value_or(unknown), event.incident));
  }
  if (!choice.stopped && event.finish == FinishReason::Abort) {
    const bool late = deadline_us_ != 0 && now_us() >= deadline_us_;
    ApiError error = unavailable("the server ended the request before it was complete", "aborted", 1);
    if (late) {
      error = {.status = 408,
               .message = "the request's time is over (x-request-timeout-ms, or the server's --request-timeout-ms)",
               .type = "timeout_error",
               .code = "deadline_exceeded",
               .should_retry = false};
    }
    return fail(error);
  }
  choice.text.end(event.finish == FinishReason::Length, choice.pending);
  // What scores texts by echo counts on an entry for every token drawn, the one that ends the text included.
  const bool scored_stop = late_prompt_ && !request_.prompt_only && !choice.stopped && event.stop_id >= 0;
  if (scored_stop) choice.pending.logprobs.push_back({event.logprob, event.top});
  ChoiceEnd end;
  if (const std::optional<std::string> stop = choice.text.stopped_by(); stop) {
    end.stop_reason_json.clear();
    append_json_string(end.stop_reason_json, *stop);
  } else if (event.finish == FinishReason::Length) {
    end.finish_reason = "length";
  } else {
    const std::vector<int32_t>& ids = request_.common.stop_token_ids;
    const bool asked = std::find(ids.begin(), ids.end(), event.stop_id) != ids.end();
    if (asked) end.stop_reason_json = std::to_string(event.stop_id);
    if (choice.text.calls() > 0 && !choice.text.malformed_call()) end.finish_reason = "tool_calls";
  }
  end.malformed_call = choice.text.malformed_call();
  finish_choice(choice, end);
}

void Generation::emit(Choice& choice) {
  ChoiceDelta& delta = choice.pending;
  const bool something = delta.has_text() || !delta.logprobs.empty();
  if (gathers()) {
    ChoiceDelta& all = choice.whole.text;
    all.reasoning += delta.reasoning;
    all.content += delta.content;
    for (CallDelta& call : delta.calls) {
      const auto index = static_cast<size_t>(call.index);
      if (index == all.calls.size()) {
        all.calls.push_back(std::move(call));
      } else {
        all.calls[index].arguments += call.arguments;
      }
    }
    std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(all.logprobs));
    all.token_ids.insert(all.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  } else {
    if (!something && (!choice.done || delta.token_ids.empty())) return;
    exchange_->write(writer_->delta(choice.index, delta, choice.text_offset));
  }
  delta = {};
}

// The prompt's part of an answer with echo, once the engine has told its probabilities.
void Generation::finish_prompt(Choice& choice) {
  const PromptInput& prompt = request_.prompts[choice.prompt];
  if (request_.common.return_token_ids) choice.whole.prompt_ids = prompt.ids;
  if (!request_.echo) return;
  choice.whole.prompt_text = prompt.text;
  if (!late_prompt_) return;
  choice.whole.prompt_logprobs.push_back({{prompt.ids.front(), 0.0f}, {}});
  for (PromptLogprob& position : choice.stream->prompt_logprobs) {
    choice.whole.prompt_logprobs.push_back({position.token, std::move(position.top)});
  }
}

void Generation::finish_choice(Choice& choice, const ChoiceEnd& end) {
  choice.done = true;
  choice.reason = end.finish_reason;
  --open_choices_;
  emit(choice);
  if (gathers()) finish_prompt(choice);
  choice.whole.end = end;
  if (!request_.common.stream) return;
  if (late_prompt_) {
    exchange_->write(writer_->echo(choice.index, choice.whole));
    choice.text_offset = count_characters(choice.whole.prompt_text);
    const ChoiceDelta& text = choice.whole.text;
    if (text.has_text() || !text.logprobs.empty()) {
      exchange_->write(writer_->delta(choice.index, text, choice.text_offset));
    }
  }
  exchange_->write(writer_->end(choice.index, end));
}

UsageFacts Generation::usage() const {
  UsageFacts total;
  for (const PromptInput& prompt : request_.prompts) total.prompt_tokens += static_cast<int>(prompt.ids.size());
  for (const Choice& choice : choices_) {
    const StreamUsage& used = choice.stream->usage;
    // A stop string ends the text earlier than the engine learns of it: surplus tokens are not the client's.
    if (!request_.prompt_only) {
      total.completion_tokens += choice.stopped ? choice.text.tokens() : used.completion_tokens;
    }
    if (choice.index % request_.common.n == 0) total.cached_tokens += used.cached_tokens;
    total.reasoning_tokens += choice.text.reasoning_tokens();
    total.accepted_prediction_tokens += used.accepted_draft_tokens;
    total.rejected_prediction_tokens += used.rejected_draft_tokens;
  }
  return total;
}

void Generation::finish() {
  over_ = true;
  const UsageFacts used = usage();
  if (request_.common.stream) {
    exchange_->write(writer_->finish(used));
    record(choices_.front().reason);
    exchange_->end_stream();
    return;
  }
  std::vector<WholeChoice> whole;
  whole.reserve(choices_.size());
  for (Choice& choice : choices_) whole.push_back(std::move(choice.whole));
  HttpResponse response{.body = writer_->whole(whole, used)};
  if (const std::string list = ignored_fields_header(request_.common); !list.empty()) {
    response.headers.emplace_back("x-ignored-fields", list);
  }
  record(choices_.front().reason);
  exchange_->respond(std::move(response));
}

void Generation::fail(const ApiError& error) {
  over_ = true;
  cancel_all();
  if (!choices_.empty()) record("error");
  const bool streaming = request_.common.stream && open_choices_ > 0;
  if (!streaming) return exchange_->respond(refusal(request_.endpoint, error));
  exchange_->write(writer_->failed(error));
  exchange_->end_stream();
}

void Generation::abort() {
  if (over_) return;
  fail({.status = 409,
        .message = "the request was aborted",
        .type = "request_aborted",
        .code = "aborted",
        .should_retry = false});
}

void Generation::cancel_all() {
  for (Choice& choice : choices_)
    if (!choice.done) choice.stream->cancel();
}

void Generation::record(std::string_view reason) {
  context_.running.remove(this);
  const std::chrono::duration<double> lasted = std::chrono::steady_clock::now() - exchange_->started();
  const std::chrono::duration<double> queued = submitted_ - exchange_->started();
  int tokens = 0, cached = 0;
  for (const Choice& choice : choices_) {
    tokens += choice.text.tokens();
    cached += choice.done ? choice.stream->usage.cached_tokens : 0;
  }
  int prompt_tokens = 0;
  for (const PromptInput& prompt : request_.prompts) prompt_tokens += static_cast<int>(prompt.ids.size());
  const double decode = static_cast<double>(last_token_us_ - first_token_us_) * 1e-6;
  context_.metrics.finished({.reason = reason,
                             .seconds = lasted.count(),
                             .seconds_per_token = tokens > 1 ? decode / (tokens - 1) : 0,
                             .prompt_tokens = prompt_tokens,
                             .completion_tokens = tokens});
  const auto number = [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", value);
    return std::string(text);
  };
  exchange_->notes = {{"finish", std::string(reason)},
                      {"prompt_tokens", std::to_string(prompt_tokens), true},
                      {"cached_tokens", std::to_string(cached), true},
                      {"completion_tokens", std::to_string(tokens), true},
                      {"prepare_ms", number(queued.count() * 1e3), true}};
  if (first_token_us_ != 0) {
    exchange_->notes.push_back({"first_token_ms", number(first_token_s_ * 1e3), true});
    exchange_->notes.push_back({"decode_ms", number(decode * 1e3), true});
  }
}

}  // namespace plumb

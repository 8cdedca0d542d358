// An engine that plays scripts: the server's tests decide every token, its timing and its end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine_api.h"

namespace plumb {

struct Script {
  std::vector<TokenEvent> events{};  // the last one has finish != None; cut by max_tokens with Length
  std::vector<PromptLogprob> prompt_logprobs{};
  int tokens_per_step = 1;
  int cached_tokens = 0;
  int hold_steps = 0;  // steps before the first token, as a long prefill
};

class FakeEngine : public EngineApi {
 public:
  using Author = std::function<Script(const GenerateRequest&)>;

  explicit FakeEngine(Author author) : author_(std::move(author)), thread_([this] { loop(); }) {}
  ~FakeEngine() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  Status submit(GenerateRequest request, std::shared_ptr<TokenStream> stream) override {
    const std::lock_guard lock(mutex_);
    if (draining_) return Error{Code::Environment, "the engine drains", {}, {}};
    if (static_cast<int>(running_.size()) >= capacity_) return Error{Code::Environment, "the queue is full", {}, {}};
    Script script = author_(request);
    requests_.push_back(request);
    running_.push_back({std::move(request), std::move(stream), std::move(script)});
    changed_.notify_all();
    return Ok{};
  }
  EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    EngineStats s;
    s.running = static_cast<int>(running_.size());
    s.aborts = aborts_;
    s.generated_tokens = tokens_;
    s.steps = steps_;
    return s;
  }
  int max_context() const override { return max_context_; }
  bool alive() const override { return alive_.load(); }
  void drain(int64_t timeout_ms) override {
    std::unique_lock lock(mutex_);
    draining_ = true;
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return running_.empty(); });
    abort_all_ = true;
    changed_.wait(lock, [this] { return running_.empty() || stop_; });
  }

  void set_step_us(int microseconds) { step_us_ = microseconds; }
  void set_capacity(int capacity) {
    const std::lock_guard lock(mutex_);
    capacity_ = capacity;
  }
  void set_max_context(int tokens) { max_context_ = tokens; }
  void set_alive(bool alive) { alive_ = alive; }
  void set_paused(bool paused) {
    const std::lock_guard lock(mutex_);
    paused_ = paused;
    changed_.notify_all();
  }
  std::vector<GenerateRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  uint64_t aborts() const { return stats().aborts; }
  uint64_t tokens() const { return stats().generated_tokens; }
  int running() const { return stats().running; }
  bool wait_idle(int milliseconds = 5000) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(milliseconds), [this] { return running_.empty(); });
  }
  bool wait_running(int count, int milliseconds = 20000) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                             [&] { return static_cast<int>(running_.size()) >= count; });
  }

 private:
  struct Running {
    GenerateRequest request{};
    std::shared_ptr<TokenStream> stream{};
    Script script{};
    size_t next = 0;
    int sent = 0;
    bool over = false;
  };

  void end(Running& r, TokenEvent last) {
    r.stream->usage.prompt_tokens = static_cast<int>(r.request.prompt_ids.size());
    r.stream->usage.completion_tokens = r.sent;
    r.stream->usage.cached_tokens = r.script.cached_tokens;
    r.stream->prompt_logprobs = r.script.prompt_logprobs;
    r.stream->push(std::move(last));
    r.over = true;
  }
  void step(Running& r) {
    if (r.stream->cancelled() || abort_all_) {
      ++aborts_;
      TokenEvent last;
      last.finish = FinishReason::Abort;
      return end(r, std::move(last));
    }
    if (r.script.hold_steps > 0) {
      --r.script.hold_steps;
      return;
    }
    for (int i = 0; i < r.script.tokens_per_step && !r.over; ++i) {
      TokenEvent event = r.script.events[r.next++];
      if (event.id >= 0) {
        ++r.sent;
        ++tokens_;
      }
      if (event.finish == FinishReason::None && r.sent == r.request.max_tokens) event.finish = FinishReason::Length;
      if (event.finish != FinishReason::None) {
        end(r, std::move(event));
      } else {
        r.stream->push(std::move(event));
      }
    }
  }
  void loop() {
    std::unique_lock lock(mutex_);
    std::vector<std::shared_ptr<TokenStream>> woken;
    while (!stop_) {
      changed_.wait(lock, [this] { return stop_ || (!running_.empty() && !paused_); });
      ++steps_;
      woken.clear();
      for (Running& r : running_) {
        step(r);
        woken.push_back(r.stream);
      }
      std::erase_if(running_, [](const Running& r) { return r.over; });
      const int pause = step_us_;
      lock.unlock();
      changed_.notify_all();
      for (const auto& stream : woken) stream->on_ready();
      if (pause > 0) std::this_thread::sleep_for(std::chrono::microseconds(pause));
      lock.lock();
    }
  }

  Author author_;
  mutable std::mutex mutex_{};
  mutable std::condition_variable changed_{};
  std::vector<Running> running_{};
  std::vector<GenerateRequest> requests_{};
  int capacity_ = 1 << 20;
  std::atomic<int> max_context_{4096};
  std::atomic<int> step_us_{0};
  std::atomic<bool> alive_{true};
  bool paused_ = false, stop_ = false, draining_ = false, abort_all_ = false;
  uint64_t aborts_ = 0, tokens_ = 0, steps_ = 0;
  std::thread thread_;
};

}  // namespace plumb

// Who waits for whom: clients, long prompts, and how long a step may take before it counts as stuck.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/fair_share.h"
#include "engine/step_clock.h"
#include "rig.h"

namespace plumb {
namespace {

using testing::Client;
using testing::make_rig;
using testing::RigOptions;

GenerateRequest request_of(const std::string& id, const std::string& client, int prompt, int max_tokens) {
  GenerateRequest r{.request_id = id, .max_tokens = max_tokens, .client = client};
  for (int i = 0; i < prompt; ++i) r.prompt_ids.push_back(10 + i % 200);
  r.sampling.temperature = 0;
  return r;
}

TEST(FairShare, OneClientIsServedInTheOrderOfArrival) {
  FairShare turns;
  int64_t before = -1;
  for (int i = 0; i < 100; ++i) {
    const int64_t turn = turns.place("", 1 + i % 7);
    EXPECT_GT(turn, before);
    before = turn;
    if (i % 3 == 0) turns.began(turn / 2);
  }
}

TEST(FairShare, AThousandRequestsOfOneClientDelayAnotherByOne) {
  FairShare turns;
  std::vector<int64_t> many;
  for (int i = 0; i < 1000; ++i) many.push_back(turns.place("many", 100));
  turns.began(many[3]);
  const int64_t other = turns.place("other", 100);
  EXPECT_LT(other, many[4]);
  EXPECT_GE(other, many[3]) << "idle time is no credit";
  EXPECT_LT(turns.place("other", 100), many[6]) << "from then on they take turns";
}

TEST(FairShare, ForgetsClientsThatHaveNothingLeft) {
  FairShare turns;
  for (int i = 0; i < 100'000; ++i) turns.began(turns.place("client " + std::to_string(i), 5) + 10);
  EXPECT_GE(turns.place("again", 1), 10);
}

TEST(StepClock, AStepHasTheTimeThatItsSizeTakes) {
  StepClock clock(/*floor_us=*/1000, /*first_us=*/60'000'000);
  int64_t now = 0;
  clock.begin(now, 1);
  EXPECT_FALSE(clock.overdue(now + 50'000'000)) << "nothing is known of the first";
  clock.end(now += 2000);
  const auto run = [&](double work, int64_t us) {
    clock.begin(now, work);
    clock.end(now += us);
  };
  for (int i = 0; i < 50; ++i) run(1, 2000);
  clock.begin(now, 1);
  EXPECT_FALSE(clock.overdue(now + 30'000));
  EXPECT_TRUE(clock.overdue(now + 50'000)) << "twenty times what it should take";
  clock.end(now += 2000);
  clock.begin(now, 10'000);  // a prompt, larger than anything seen
  EXPECT_FALSE(clock.overdue(now + 10'000 * 2000));
  clock.end(now += 5'000'000);
  for (int i = 0; i < 50; ++i) run(10'000, 5'000'000);
  clock.begin(now, 10'000);
  EXPECT_FALSE(clock.overdue(now + 90'000'000));
  EXPECT_TRUE(clock.overdue(now + 110'000'000));
  clock.end(now += 5'000'000);
  EXPECT_FALSE(clock.overdue(now + 1'000'000'000)) << "no step runs";
}

TEST(Fairness, AStuckStepIsSeenAndItsEndToo) {
  RigOptions options;
  options.engine.stuck_step_ms = 50;
  std::atomic<bool> hold{false}, held{false};
  options.engine.observer = [&](const StepView&) {
    held = hold.load();
    hold.wait(true);
  };
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  Client warm(*rig->engine, request_of("warm", "", 20, 30));
  warm.wait();
  EXPECT_TRUE(rig->engine->alive());
  hold = true;
  Client stuck(*rig->engine, request_of("stuck", "", 1, 2));
  for (int i = 0; i < 5000 && rig->engine->alive(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_TRUE(held);
  EXPECT_FALSE(rig->engine->alive());
  hold = false;
  hold.notify_all();
  stuck.wait();
  EXPECT_EQ(stuck.finish(), FinishReason::Length);
  rig->engine->drain(10'000);
  EXPECT_TRUE(rig->engine->alive());
}

// Each request's first step, in the order in which they came to run.
TEST(Fairness, ClientsTakeTurnsAtTheQueue) {
  RigOptions options;
  options.engine.max_running = 1;
  std::vector<std::string> order;  // the engine thread's until it has drained
  std::atomic<bool> hold{true};
  options.engine.observer = [&](const StepView& step) {
    hold.wait(true);  // the first one stays until all others wait
    const std::string& id = step.items[0].sequence->request.request_id;
    if (order.empty() || order.back() != id) order.push_back(id);
  };
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 6; ++i)
    clients.push_back(std::make_unique<Client>(*rig->engine, request_of("a" + std::to_string(i), "a", 20, 2)));
  clients.push_back(std::make_unique<Client>(*rig->engine, request_of("b0", "b", 20, 2)));
  hold = false;
  hold.notify_all();
  for (const auto& client : clients) client->wait();
  rig->engine->drain(10'000);
  ASSERT_EQ(order.size(), 7u);
  const auto place = std::find(order.begin(), order.end(), "b0") - order.begin();
  EXPECT_LE(place, 2) << "behind the running one and at most one more";
}

}  // namespace
}  // namespace plumb

// The guard of a running engine: a value that goes bad anywhere ends one request with the place that wrote it, leaves a
// capture that repeats it, and harms nobody else; finite garbage is found by the shadow.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "device/cuda_device.h"
#include "guard/witness.h"
#include "rig.h"
#include "support/folder.h"

namespace plumb {
namespace {

using testing::Client;
using testing::make_rig;
using testing::Rig;
using testing::RigOptions;

// Spoils one number that a place writes for one position of one request.
class Planted : public OpObserver {
 public:
  Planted(SiteId site, int position, float value, bool once = false)
      : site_(site), position_(position), value_(value), once_(once) {}
  void begin_pass(const Paging& rows) override { rows_ = rows; }
  void before(const OpCall&, Executor&) override {}
  void after(const OpCall& call, Executor& executor) override {
    if (call.site != site_ || (done_ && once_)) return;
    for (int64_t r = 0; r < call.rows; ++r) {
      const int32_t row = call.origin.row(r);
      if (row >= rows_.rows || rows_.positions[row] != position_) continue;
      AnyArgs args = any_args(call.kernel.contract.op, call.args);
      bool here = false;
      const auto spoil = [&](void* row_begin) {
        executor.memory().upload(static_cast<float*>(row_begin) + 1, &value_, sizeof value_, executor.stream());
        executor.memory().synchronise(executor.stream());
        here = done_ = true;
      };
      if (const auto* write = std::get_if<KvWriteArgs>(&args))
        spoil(latent_row(write->kv, rows_, rows_.sequence[row], rows_.positions[row]));
      for_tensors(args, [&](const char*, const Tensor& tensor, Role role) {
        if (role != Role::In && tensor.dtype == DType::F32 && !here) spoil(tensor.row_f32(r));
      });
    }
  }
  bool done() const { return done_; }

 private:
  SiteId site_;
  int position_;
  float value_;
  bool once_;  // else in every launch
  Paging rows_{};
  bool done_ = false;
};

GenerateRequest request(int i, int prompt = 30, int answer = 8) {
  GenerateRequest r{.request_id = "r" + std::to_string(i), .max_tokens = answer};
  for (int t = 0; t < prompt; ++t) r.prompt_ids.push_back(10 + (t * 7 + i * 13) % 200);
  r.sampling.temperature = 0;
  return r;
}

RigOptions captured(const testing::TemporaryFolder& folder) {
  RigOptions options;
  options.engine.guard.captures = {.folder = folder.path(), .max_files = 100};
  return options;
}

std::vector<std::vector<int32_t>> alone(int count) {
  std::vector<std::vector<int32_t>> out;
  const auto rig = make_rig();
  for (int i = 0; i < count; ++i) out.push_back(generate(*rig->engine, request(i))->ids);
  return out;
}

// One request is longer than the others, so that a position is its own alone.
constexpr int kVictim = 3;
GenerateRequest victim() { return request(kVictim, 50); }

class GuardOn : public testing::OnBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, GuardOn, testing::all_backends(), testing::backend_name);

TEST_P(GuardOn, NamesThePlaceThatWroteABadValueAndHarmsNobodyElse) {
  const auto want = alone(3);
  const testing::TemporaryFolder folder;
  const auto rig = make_rig(captured(folder));
  ASSERT_NE(rig, nullptr);
  const Plan& plan = rig->instance->model->planned.plan;
  int tried = 0;
  for (size_t site = 0; site < plan.sites.size(); ++site) {
    const SiteDecl& decl = plan.sites[site].decl;
    const bool integers = decl.call.op == Op::TopK || decl.call.op == Op::Sample || decl.call.op == Op::FiniteRows;
    const bool logits_only = decl.call.op == Op::GatherRows || decl.name == "lm_head";
    if (integers || decl.layer > 2) continue;
    // A device's sentinels see the cache where it is read.
    if (decl.call.op == Op::KvWrite && current() == "cuda") continue;
    const bool infinite = site % 2 == 0;
    const int position = logits_only ? 49 : 40 + static_cast<int>(site % 12);  // prefill and decode
    Planted planted(static_cast<SiteId>(site), position,
                    infinite ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN());
    auto& executor = rig->executor();
    executor.add_observer_first(planted);
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 3; ++i) clients.push_back(std::make_unique<Client>(*rig->engine, request(i)));
    Client bad(*rig->engine, victim());
    bad.wait();
    for (auto& client : clients) client->wait();
    executor.remove_observer(planted);
    ASSERT_TRUE(planted.done()) << decl.name;
    ASSERT_EQ(bad.finish(), FinishReason::Error) << decl.name;
    const Incident& incident = *bad.events.back().incident;
    EXPECT_EQ(incident.site, decl.name);
    EXPECT_EQ(incident.op, to_string(decl.call.op));
    EXPECT_EQ(incident.layer, decl.layer);
    EXPECT_EQ(incident.position, position) << decl.name;
    EXPECT_EQ(incident.kind, infinite ? FaultKind::Inf : FaultKind::Nan) << decl.name;
    EXPECT_EQ(incident.column, 1) << decl.name;
    EXPECT_EQ(incident.request_id, "r3");
    EXPECT_TRUE(incident.captured);
    for (size_t i = 0; i < clients.size(); ++i) EXPECT_EQ(clients[i]->ids(), want[i]) << decl.name;
    ++tried;
  }
  EXPECT_GT(tried, 40);
  EXPECT_EQ(rig->engine->stats().numerical_faults, static_cast<uint64_t>(tried));
  rig->engine.reset();  // all captures are written
  const Witness witness(plan, testing::rig_registry(), nullptr, witness_device(rig->executor()));
  int replayed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    Result<Capture> capture = read_capture(entry.path(), plan, testing::rig_registry(),
                                           rig->instance->model->planned.sites, rig->instance->model->weights);
    ASSERT_TRUE(capture) << capture.error().to_string();
    EXPECT_EQ(capture->facts().count("tokens"), 0u) << "the user's text stays out unless it is allowed in";
    const Judgement judgement = witness.judge(capture->record);
    EXPECT_FALSE(judgement.passes()) << capture->site << ": the capture holds what went wrong";
    const Result<Judgement> again = witness.judge(capture->record, capture->record.kernel());
    ASSERT_TRUE(again) << again.error().to_string();
    EXPECT_TRUE(again->passes()) << capture->site << ": run again, the kernel is right: " << again->to_string();
    ++replayed;
  }
  EXPECT_EQ(replayed, tried);
}

// A device's sentinels see a value in the recorded step that is not there when the step is run again.
TEST(GuardOnDevice, TellsThatAValueWasGoneWhenTheStepWasRunAgain) {
  if (const auto device = find_cuda(0); !device) GTEST_SKIP() << device.error().to_string();
  RigOptions options;
  options.backend = "cuda";
  options.activations = "f32";
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  const Plan& plan = rig->instance->model->planned.plan;
  for (const char* name : {"layers.0.self_attn.o_proj", "layers.1.mlp.gate", "embed_tokens"}) {
    const auto site = std::ranges::find(plan.sites, name, [](const Site& s) { return s.decl.name; });
    ASSERT_NE(site, plan.sites.end()) << name;
    Planted planted(static_cast<SiteId>(site - plan.sites.begin()), 40, std::numeric_limits<float>::quiet_NaN(), true);
    rig->executor().add_observer_first(planted);
    Client bad(*rig->engine, victim());
    bad.wait();
    rig->executor().remove_observer(planted);
    ASSERT_EQ(bad.finish(), FinishReason::Error) << name;
    const Incident& incident = *bad.events.back().incident;
    EXPECT_FALSE(incident.repeated);
    EXPECT_FALSE(incident.captured);
    EXPECT_EQ(incident.layer, site->decl.layer < 0 ? 0 : site->decl.layer) << incident.to_string();
    EXPECT_EQ(incident.position, 40);
  }
  EXPECT_TRUE(generate(*rig->engine, victim()));
}

TEST(Guard, CapturesAreBoundedInNumberAndSize) {
  const testing::TemporaryFolder folder;
  RigOptions options = captured(folder);
  options.poisoned_ids = {200};
  options.engine.guard.captures.max_files = 2;
  options.engine.guard.captures.with_tokens = true;
  for (int start = 0; start < 2; ++start) {  // what an earlier start left counts as well
    const auto rig = make_rig(options);
    for (int i = 0; i < 3; ++i) {
      GenerateRequest r = request(i);
      r.prompt_ids[5] = 200;
      EXPECT_FALSE(generate(*rig->engine, r));
    }
    const EngineStats stats = rig->engine->stats();
    EXPECT_EQ(stats.guard.nan_rows, 3u);
    rig->engine.reset();
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    ++files;
    const auto rig = make_rig();
    const auto capture = read_capture(entry.path(), rig->instance->model->planned.plan, testing::rig_registry(),
                                      rig->instance->model->planned.sites, rig->instance->model->weights);
    ASSERT_TRUE(capture);
    EXPECT_EQ(nlohmann::json::parse(capture->facts_text)["tokens"].size(), 6u);
  }
  EXPECT_EQ(files, 2u);
}

TEST(Guard, AFileThatIsNoCaptureIsRefused) {
  const auto rig = make_rig();
  const auto& sites = rig->instance->model->planned.sites;
  const auto refused =
      read_capture(testing::golden_path("random/base/model.safetensors"), rig->instance->model->planned.plan,
                   testing::rig_registry(), sites, rig->instance->model->weights);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::Corrupt);
}

class ShadowOn : public testing::OnBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, ShadowOn, testing::all_backends(), testing::backend_name);

TEST_P(ShadowOn, AtRateOneFindsFiniteGarbageInEveryPlace) {
  RigOptions options;
  options.engine.guard.shadow_rate = 1;
  options.engine.guard.registry = &testing::rig_registry();
  const auto rig = make_rig(options);
  ASSERT_NE(rig, nullptr);
  const Plan& plan = rig->instance->model->planned.plan;
  int tried = 0;
  for (size_t site = 0; site < plan.sites.size(); ++site) {
    const SiteDecl& decl = plan.sites[site].decl;
    if (decl.layer > 1 || decl.call.op == Op::TopK || decl.call.op == Op::Sample || decl.call.op == Op::FiniteRows)
      continue;
    // A decode step: one row. A prompt: one row of 30, of which the layers outside see the last alone.
    for (const int position : {30, 7}) {
      if (position < 30 && decl.layer < 0) continue;
      Planted planted(static_cast<SiteId>(site), position, 3e3f);
      rig->executor().add_observer_first(planted);
      Client client(*rig->engine, request(static_cast<int>(site), 30, 200));
      client.wait();
      rig->executor().remove_observer(planted);
      ASSERT_TRUE(planted.done()) << decl.name;
      ASSERT_EQ(client.finish(), FinishReason::Error) << decl.name;
      const Incident& incident = *client.events.back().incident;
      EXPECT_EQ(incident.kind, FaultKind::Drift);
      EXPECT_EQ(incident.site, decl.name);
      EXPECT_EQ(incident.position, position) << decl.name;
      ++tried;
    }
  }
  EXPECT_GT(tried, 50);
  const GuardStats stats = rig->engine->stats().guard;
  EXPECT_EQ(stats.drift_rows, static_cast<uint64_t>(tried));
  EXPECT_GT(stats.shadow.ops, 1000u);
  EXPECT_EQ(stats.shadow.outside, static_cast<uint64_t>(tried));
}

TEST(Shadow, BelowRateOneRaisesNoAlarmAndLooksAtSomeSteps) {
  RigOptions options;
  options.backend = "cpu";
  options.kv = options.index_keys = "auto";
  options.engine.guard.shadow_rate = 0.5;
  options.engine.guard.registry = &testing::rig_registry();
  const auto rig = make_rig(options);
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(generate(*rig->engine, request(i, 40, 30)));
  const EngineStats stats = rig->engine->stats();
  EXPECT_GT(stats.guard.shadow.steps, 0u);
  EXPECT_LT(stats.guard.shadow.steps, stats.steps);
  EXPECT_EQ(stats.guard.shadow.outside, 0u);
  EXPECT_EQ(stats.numerical_faults, 0u);
}

}  // namespace
}  // namespace plumb

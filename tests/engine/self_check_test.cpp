// Verification before ready: it passes on every backend, and faults that are there from the start fail it, each in the
// check made for it and with the place named.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/self_check.h"
#include "guard/op_args.h"
#include "model/buffers.h"
#include "rig.h"
#include "support/folder.h"

namespace plumb {
namespace {

using testing::make_rig;
using testing::Rig;
using testing::RigOptions;

Forward forward_of(Rig& rig) { return rig.instance->forward(); }

std::unique_ptr<Rig> rig_without_engine(RigOptions options) {
  auto rig = make_rig(options);
  if (rig) rig->engine.reset();
  return rig;
}

RigOptions small(const std::string& backend = "cpu") {
  RigOptions options;
  options.backend = backend;
  options.kv = options.index_keys = "auto";
  return options;
}

Receipt verify(Rig& rig, const RigOptions& options, const Golden* golden = nullptr, bool full = false,
               bool first_only = false) {
  const Forward forward = forward_of(rig);
  EngineOptions engine = options.engine;
  engine.observer = {};
  return {.level = full ? "full" : "quick",
          .checks = run_self_checks({.forward = forward,
                                     .options = engine,
                                     .registry = testing::rig_registry(),
                                     .pool = rig.pool.get(),
                                     .full = full,
                                     .first_only = first_only,
                                     .golden = golden})};
}

const Check& check(const Receipt& receipt, const std::string& name) {
  const auto found = std::ranges::find(receipt.checks, name, &Check::name);
  EXPECT_NE(found, receipt.checks.end()) << name;
  return *found;
}

std::vector<std::string> failed(const Receipt& receipt) {
  std::vector<std::string> names;
  for (const Check& c : receipt.checks)
    if (c.verdict == Check::Verdict::Failed) names.push_back(c.name);
  return names;
}

TEST(SelfCheck, PassesWhereNothingIsWrong) {
  RigOptions fp8 = small();
  fp8.kv = "fp8";
  RigOptions mtp = small();
  mtp.folder = testing::model_path();
  mtp.engine.draft_tokens = 2;
  for (const RigOptions& options : {small("reference"), small(), fp8, mtp}) {
    for (const bool full : {false, true}) {
      if (full && options.backend == "reference") continue;  // slow is a choice
      const auto rig = rig_without_engine(options);
      ASSERT_NE(rig, nullptr);
      const Receipt receipt = verify(*rig, options, nullptr, full);
      EXPECT_TRUE(receipt.passed()) << receipt.to_json().dump(1);
      for (const char* name :
           {"layer_replay", "decode_vs_prefill", "long_context", "batch_buckets", "cache_paths", "sampling"})
        EXPECT_EQ(check(receipt, name).verdict, Check::Verdict::Passed) << receipt.to_json().dump(1);
      EXPECT_EQ(check(receipt, "speculation").verdict,
                options.engine.draft_tokens > 0 ? Check::Verdict::Passed : Check::Verdict::Skipped);
      EXPECT_EQ(check(receipt, "ranks").verdict, Check::Verdict::Skipped);
      EXPECT_GT(check(receipt, "layer_replay").figure, 0);
    }
  }
}

// Changes what a place writes in launches that `when` chooses.
class Planted : public OpObserver {
 public:
  using When = std::function<bool(const OpCall&)>;
  Planted(SiteId site, When when, float factor) : site_(site), when_(std::move(when)), factor_(factor) {}
  void before(const OpCall&, Executor&) override {}
  void after(const OpCall& call, Executor& executor) override {
    if (call.site != site_ || !when_(call)) return;
    AnyArgs args = any_args(call.kernel.contract.op, call.args);
    for_tensors(args, [&](const char*, const Tensor& tensor, Role role) {
      if (role == Role::In || tensor.dtype != DType::F32) return;
      testing::change_values(executor, tensor, [&](const Tensor& values) {
        for (int64_t r = 0; r < values.dim(0); ++r)
          for (int64_t c = 0; c < values.dim(1); ++c) values.row_f32(r)[c] *= factor_;
      });
    });
  }

 private:
  SiteId site_;
  When when_;
  float factor_;
};

struct Fault {
  const char* site = "";
  Planted::When when{};
  float factor = 1;
  const char* check = "";
};

class SelfCheckOn : public testing::OnBackend {
 protected:
  static RigOptions options() { return current() == "cuda" ? small("cuda") : small(); }
};
INSTANTIATE_TEST_SUITE_P(Backends, SelfCheckOn, ::testing::Values("cpu", "cuda"), testing::backend_name);

// What a device serves with: its own formats, kernels that add in several orders, recorded steps, drafts.
TEST_P(SelfCheckOn, PassesWithEveryCache) {
  for (const char* kv : {"bf16", "fp8", "f32"}) {
    for (const bool deterministic : {false, true}) {
      RigOptions options = SelfCheckOn::options();
      options.folder = testing::model_path();
      options.engine.draft_tokens = 2;
      options.kv = kv;
      options.deterministic = deterministic;
      const auto rig = rig_without_engine(options);
      ASSERT_NE(rig, nullptr);
      const Receipt receipt = verify(*rig, options, nullptr, /*full=*/true);
      EXPECT_TRUE(receipt.passed()) << kv << receipt.to_json().dump(1);
      for (const Check& c : receipt.checks)
        EXPECT_EQ(c.verdict == Check::Verdict::Skipped, c.name == "ranks" || c.name == "golden" || c.name == "text")
            << c.name;
    }
  }
}

TEST_P(SelfCheckOn, FindsFaultsThatAreThereFromTheStart) {
  const auto always = [](const OpCall&) { return true; };
  const auto decode = [](const OpCall& call) { return call.rows == 1; };
  const auto batch_of_five = [](const OpCall& call) { return call.rows > 4 && call.rows <= 8; };  // or padded
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Fault> faults = {
      {"layers.0.self_attn.q_b_proj", always, 1.5f, "layer_replay"},
      {"layers.1.self_attn.attend", decode, 0.9f, "layer_replay"},
      {"layers.1.self_attn.attend", decode, 0.0f, "layer_replay"},
      {"layers.1.self_attn.attend", decode, nan, "layer_replay"},
      {"lm_head", always, 1.5f, "layer_replay"},
      {"layers.1.mlp.experts", batch_of_five, 0.5f, "batch_buckets"},
      {"layers.0.self_attn.o_proj", batch_of_five, nan, "batch_buckets"},
  };
  const RigOptions options = SelfCheckOn::options();
  for (const Fault& fault : faults) {
    const auto rig = rig_without_engine(options);
    ASSERT_NE(rig, nullptr);
    const Plan& plan = rig->instance->model->planned.plan;
    const auto site = std::ranges::find_if(plan.sites, [&](const Site& s) { return s.decl.name == fault.site; });
    ASSERT_NE(site, plan.sites.end()) << fault.site;
    Planted planted(static_cast<SiteId>(site - plan.sites.begin()), fault.when, fault.factor);
    rig->executor().add_observer_first(planted);
    const Receipt receipt = verify(*rig, options);
    rig->executor().remove_observer(planted);
    ASSERT_FALSE(receipt.passed()) << fault.site;
    EXPECT_EQ(failed(receipt).front(), fault.check) << fault.site << receipt.to_json().dump(1);
    const std::string report = receipt.to_error().to_string();
    EXPECT_EQ(check(receipt, fault.check).worst.site, fault.site) << report;
    EXPECT_NE(report.find(fault.site), std::string::npos) << report;
    // A device's deterministic plan may accept its plain kernel alone.
    EXPECT_TRUE(options.deterministic || !check(receipt, fault.check).worst.passing.empty()) << report;
    EXPECT_EQ(receipt.to_error().code, Code::Verification);
  }
}

// A small model is replayed whole, so a weight prepared wrongly in one layer in the middle can't hide.
TEST(SelfCheck, FindsAFaultInAnyLayerOfASmallModel) {
  RigOptions options = small();
  options.folder = testing::model_path();
  const auto rig = rig_without_engine(options);
  ASSERT_NE(rig, nullptr);
  const std::vector<Site>& sites = rig->instance->model->planned.plan.sites;
  for (size_t i = 0; i < sites.size(); ++i) {
    if (sites[i].decl.call.op != Op::Moe || sites[i].decl.layer >= rig->instance->model->config().num_hidden_layers)
      continue;
    Planted planted(
        static_cast<SiteId>(i), [](const OpCall&) { return true; }, 1.5f);
    rig->executor().add_observer_first(planted);
    const Receipt receipt = verify(*rig, options, nullptr, /*full=*/false, /*first_only=*/true);
    rig->executor().remove_observer(planted);
    EXPECT_EQ(failed(receipt), std::vector<std::string>{"layer_replay"}) << sites[i].decl.name;
    EXPECT_EQ(check(receipt, "layer_replay").worst.site, sites[i].decl.name);
  }
}

// Angles of another theta are right for every op that gets them.
TEST(SelfCheck, FindsAnotherRopeTheta) {
  const RigOptions options = small();
  const auto rig = rig_without_engine(options);
  std::vector<float>& inv_freq = rig->instance->buffers->inv_freq;
  inv_freq.back() *= 1.5f;
  const Receipt receipt = verify(*rig, options);
  EXPECT_EQ(failed(receipt), std::vector<std::string>{"layer_replay"}) << receipt.to_json().dump(1);
  EXPECT_NE(receipt.to_error().why.find("rope_theta"), std::string::npos);
}

TEST(SelfCheck, LeavesTheCacheCleanForTheServer) {
  const RigOptions options = small("reference");
  const auto rig = rig_without_engine(options);
  ASSERT_TRUE(verify(*rig, options).passed());
  for (int layer = 0; layer < rig->instance->model->config().num_hidden_layers; ++layer) {
    const KvView view = rig->instance->cache->view(layer);
    const auto* latent = reinterpret_cast<const float*>(view.latent);
    for (int64_t i = 0; i < rig->instance->cache->pages() * view.geometry.latent_page_bytes() / 4; ++i)
      ASSERT_EQ(latent[i], 0.0f);
  }
}

// A file is written whole and read back; logits further from it than its bound fail the start.
TEST(SelfCheck, ComparesWithTheGoldenFile) {
  const RigOptions options = small();
  const auto rig = rig_without_engine(options);
  Golden golden{.checkpoint = "c", .numeric_profile = "transformers", .made_by = "test", .bounds = {{"bf16", 1e9}}};
  golden.prompts.push_back(
      {.ids = {1, 2, 3, 4}, .positions = {{.position = 3, .ids = {5, 6}, .logits = {0.0f, 0.0f}}}});
  const testing::TemporaryFolder folder;
  ASSERT_TRUE(write_golden(golden, folder / kGoldenFile));
  const Result<Golden> read = read_golden(folder / kGoldenFile);
  ASSERT_TRUE(read) << read.error().to_string();
  const Receipt loose = verify(*rig, options, &*read);
  EXPECT_EQ(check(loose, "golden").verdict, Check::Verdict::Passed);
  golden.bounds["bf16"] = check(loose, "golden").figure / 2;
  EXPECT_EQ(failed(verify(*rig, options, &golden)), std::vector<std::string>{"golden"});
  testing::write_file(folder / "broken.json", R"({"version": 1, "checkpoint": 3})");
  EXPECT_EQ(read_golden(folder / "broken.json").error().code, Code::Corrupt);
  EXPECT_EQ(read_golden(folder / "absent.json").error().code, Code::NotFound);
}

TEST(SelfCheck, AsksTheOperatorsOwnPrompts) {
  const RigOptions options = small();
  const auto rig = rig_without_engine(options);
  const Forward forward = forward_of(*rig);
  SelfCheckInput input{.forward = forward, .options = options.engine, .registry = testing::rig_registry()};
  const auto to_text = [](std::span<const int32_t> ids) {
    return "answer of " + std::to_string(ids.size()) + " tokens";
  };
  input.texts = {{.name = "line 1", .prompt_ids = {1, 2}, .max_tokens = 3, .expected = "of 3", .to_text = to_text},
                 {.name = "line 2", .prompt_ids = {1, 2}, .max_tokens = 3, .expected = "of 4", .to_text = to_text}};
  const Receipt receipt{.checks = run_self_checks(input)};
  EXPECT_EQ(failed(receipt), std::vector<std::string>{"text"});
  EXPECT_NE(receipt.to_error().why.find("line 2"), std::string::npos);
  EXPECT_EQ(receipt.to_error().why.find("line 1"), std::string::npos);
}

}  // namespace
}  // namespace plumb

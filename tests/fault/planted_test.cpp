// Planted faults change what their bugs would change, where and when they were told to, and check names them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/thread_pool.h"
#include "guard/check_report.h"
#include "guard/fault.h"
#include "model/loaded_model.h"
#include "model/tap_recorder.h"
#include "support/paths.h"

namespace plumb::testing {
namespace {

const Registry& registry() {
  static const Registry kRegistry = make_registry();
  return kRegistry;
}

// The bundled model with caches of every scaled kind.
struct Model {
  explicit Model(std::vector<std::pair<std::string, std::string>> pinned = {}) {
    RunnerOptions options{.plan = {.kv = "fp8", .index_keys = "fp8", .mtp = "off", .pinned = std::move(pinned)}};
    options.plan.max_sequences = 2;
    options.plan.max_context = 128;
    options.plan.max_rows = 128;
    options.loaded = [this](LoadedModel& model) -> Status {
      loaded = &model;
      return Ok{};
    };
    Result<std::unique_ptr<ModelRunner>> opened = ModelRunner::open(model_path(), registry(), options);
    if (!opened) {
      ADD_FAILURE() << opened.error().to_string();
      return;
    }
    runner = std::move(*opened);
    ids = check_prompt(runner->config(), 96);
    ids.resize(80);  // 16 beyond index_topk
  }
  std::shared_ptr<const FaultLog> plant(const std::string& text) {
    const Result<Fault> fault = parse_fault(text);
    if (!fault) ADD_FAILURE() << fault.error().to_string();
    Result<std::shared_ptr<const FaultLog>> log = plant_faults({*fault}, registry(), *loaded);
    if (!log) ADD_FAILURE() << log.error().to_string();
    return *log;
  }
  void run(int steps = 2) {
    runner->reset();
    for (size_t at = 0; at < ids.size();) {
      const size_t rows = at == 0 ? ids.size() - static_cast<size_t>(steps) : 1;
      std::vector<RunnerRow> pass;
      for (size_t i = at; i < at + rows; ++i) pass.push_back({.id = ids[i], .logits = true});
      ASSERT_TRUE(runner->step(pass));
      at += rows;
    }
  }
  CheckReport check() {
    ThreadPool pool(0);
    Result<CheckReport> report =
        check_ops(*runner, registry(), &pool, {.ids = ids, .decode_steps = 2, .sequences = 1, .paths = false});
    if (!report) ADD_FAILURE() << report.error().to_string();
    return *report;
  }

  std::unique_ptr<ModelRunner> runner{};
  LoadedModel* loaded = nullptr;
  std::vector<int32_t> ids{};
};

Model& shared_model() {
  static Model kModel;
  return kModel;
}

TEST(PlantedFault, EveryKindChangesOutputs) {
  Model& model = shared_model();
  for (const char* text : {"nan@linear",
                           "inf@moe",
                           "nan@kv_write",
                           "inf@index_key_write",
                           "scale_format@moe",
                           "nibble_order@mlp",
                           "block_offset@moe",
                           "kv_scale_dropped@kv_write",
                           "kv_scale_dropped@mla_attend",
                           "kv_scale_dropped@index_key_write",
                           "kv_scale_dropped@indexer_logits",
                           "rope_halves@rope",
                           "rope_halves@kv_write",
                           "rope_halves@index_query",
                           "rope_halves@index_key_write",
                           "rope_theta@rope",
                           "rope_theta@kv_write",
                           "topk_off_by_one@topk",
                           "topk_off_by_one@mla_attend",
                           "topk_pattern_short@topk",
                           "router_bias_dropped@router",
                           "stale_graph_row@linear",
                           "missing_fence@linear",
                           "missing_fence@kv_write",
                           "expert_swapped@router",
                           "expert_swapped@moe"}) {
    const auto log = model.plant(text);
    model.run();
    EXPECT_GT(log->launches, 0) << text;
    EXPECT_GT(log->rows_changed, 0) << text;
  }
}

TEST(PlantedFault, StrikesTheRowItNamesAndNoOther) {
  Model& model = shared_model();
  const char* name = "layers.5.attn_output";
  TapRecorder right({name}), wrong({name});
  model.loaded->planned.plan.planted.reset();
  right.attach(model.runner->executor());
  model.run(0);
  model.plant("nan@layers.5.self_attn.o_proj,row=3,column=7");
  wrong.attach(model.runner->executor());
  model.run(0);
  model.runner->executor().set_tap({});
  const TapRecorder::Entry &a = *right.find(name), &b = *wrong.find(name);
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.columns; ++c) {
      const auto at = static_cast<size_t>(r * a.columns + c);
      EXPECT_TRUE(r == 3 && c == 7 ? std::isnan(b.floats[at]) : a.floats[at] == b.floats[at]) << r << ", " << c;
    }
}

TEST(PlantedFault, WaitsForItsConditions) {
  Model& model = shared_model();
  const auto launches = [&](const char* text) {
    const auto log = model.plant(text);
    model.run(2);  // a prefill of 78 rows, two decode steps
    return log->launches;
  };
  EXPECT_EQ(launches("nan@layers.2.self_attn.o_proj"), 3);
  EXPECT_EQ(launches("nan@layers.2.self_attn.o_proj,phase=decode"), 2);
  EXPECT_EQ(launches("nan@layers.2.self_attn.o_proj,phase=prefill"), 1);
  EXPECT_EQ(launches("nan@layers.2.self_attn.o_proj,rows=78"), 1);
  EXPECT_EQ(launches("nan@layers.2.self_attn.o_proj,rows=5"), 0);
  EXPECT_EQ(launches("nan@layers.2.self_attn.o_proj,after=2"), 1);
  EXPECT_EQ(launches("nan@layers.2.self_attn.o_proj,kernel=nonsense"), 0);
  const auto log = model.plant("nan@layers.5.self_attn.o_proj,from=70,phase=prefill");
  model.run(2);
  EXPECT_EQ(log->rows_changed, 8);
}

TEST(PlantedFault, IsRefusedWhereItCanNotLive) {
  Model& model = shared_model();
  const auto code = [&](const char* text) {
    const auto log = plant_faults({*parse_fault(text)}, registry(), *model.loaded);
    return log ? Code::Internal : log.error().code;
  };
  EXPECT_EQ(code("nan@nowhere"), Code::Usage);
  EXPECT_EQ(code("nibble_order@layers.0.self_attn.o_proj"), Code::Unsupported);
  EXPECT_EQ(code("rank_skew@router"), Code::Unsupported);  // of one rank
  EXPECT_EQ(code("nan@router,rank=1"), Code::Usage);
}

TEST(Check, PassesWithoutAFault) {
  Model& model = shared_model();
  model.loaded->planned.plan.planted.reset();
  const CheckReport report = model.check();
  EXPECT_TRUE(report.passes()) << report.verdict();
  EXPECT_GT(report.launches, 100);
}

// The fault is in one kernel, so every other kernel of the place is right, and the flag that check gives selects one.
TEST(Check, NamesTheOpAtFaultAndFlagsThatWork) {
  const std::string place = "layers.3.mlp.experts";
  Model& model = shared_model();
  const Plan& plan = model.loaded->planned.plan;
  const auto site =
      std::find_if(plan.sites.begin(), plan.sites.end(), [&](const Site& s) { return s.decl.name == place; });
  const std::string kernel = site->choices.back().kernel->contract.name;
  model.plant("nibble_order@" + place + ",kernel=" + kernel);
  const CheckReport report = model.check();
  ASSERT_FALSE(report.passes());
  EXPECT_EQ(report.findings.front().place, place);
  EXPECT_THAT(report.verdict(), ::testing::AllOf(::testing::HasSubstr(place), ::testing::HasSubstr(kernel)));
  const auto flag = "--kernel " + place + "=moe.reference";
  ASSERT_THAT(report.flags(), ::testing::Contains(flag));
  Model pinned({{place, "moe.reference"}});
  pinned.plant("nibble_order@" + place + ",kernel=" + kernel);
  EXPECT_TRUE(pinned.check().passes()) << pinned.check().verdict();
}

TEST(Check, FindsAKernelThatLiesAboutItsFormats) {
  const std::string place = "layers.1.mlp.experts";
  Model model({{place, "moe.lying"}});  // the contract claims NVFP4, so the plan has no objection
  const CheckReport report = model.check();
  ASSERT_FALSE(report.passes());
  EXPECT_EQ(report.findings.front().place, place);
  EXPECT_EQ(report.findings.front().kernel, "moe.lying");
  EXPECT_THAT(report.flags(), ::testing::Contains("--kernel " + place + "=moe.reference"));
}

TEST(CheckPage, StandsByItself) {
  Model& model = shared_model();
  model.plant("scale_format@layers.2.mlp.experts");
  const CheckReport report = model.check();
  const std::optional<LayerDrift> drift = LayerDrift{.relative = {1e-6, 1e-5, 0.5, 0.7, 0.8, 0.9}};
  const std::string page = check_html(
      {.model = "a <model>", .build = "test", .plan = model.loaded->planned.plan, .report = report, .drift = drift});
  EXPECT_THAT(page, ::testing::HasSubstr("<svg"));
  EXPECT_THAT(page, ::testing::HasSubstr("layers.2.mlp.experts"));
  EXPECT_THAT(page, ::testing::HasSubstr("a &lt;model&gt;"));
  EXPECT_THAT(page, ::testing::Not(::testing::AnyOf(::testing::HasSubstr("http"), ::testing::HasSubstr("src="),
                                                    ::testing::HasSubstr("<script"))));
}

}  // namespace
}  // namespace plumb::testing

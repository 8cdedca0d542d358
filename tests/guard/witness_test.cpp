// The witness on a running model: every op of every backend's step passes on its own inputs, every accepted kernel of a
// place passes on them too, and an op whose output was changed is the one found.
#include <gtest/gtest.h>

#include <map>

#include "guard/op_recorder.h"
#include "guard/witness.h"
#include "model/runner.h"
#include "support/paths.h"

namespace plumb {
namespace {

using testing::golden_path;
using testing::model_path;

const Registry& registry() {
  static const Registry kRegistry = make_registry();
  return kRegistry;
}

std::unique_ptr<ModelRunner> open(const std::string& folder, ModelPlanOptions plan) {
  plan.max_rows = 64;
  plan.max_sequences = 3;
  plan.max_context = 256;
  auto runner = ModelRunner::open(folder, registry(), {.plan = plan, .threads = 2});
  EXPECT_TRUE(runner) << runner.error().to_string();
  return runner ? *std::move(runner) : nullptr;
}

// Two sequences and a padding row, prompts then single tokens, beyond index_topk.
void run_steps(ModelRunner& runner) {
  runner.reset();
  std::vector<RunnerRow> rows;
  for (int i = 0; i < 40; ++i) rows.push_back({.sequence = 0, .id = 3 + i * 5});
  rows.push_back({.sequence = -1});
  for (int i = 0; i < 20; ++i) rows.push_back({.sequence = 1, .id = 7 + i * 3, .logits = i == 19});
  ASSERT_TRUE(runner.step(rows));
  ASSERT_TRUE(runner.step(rows));
  for (int i = 0; i < 2; ++i) {
    const std::vector<RunnerRow> next = {
        {.sequence = 1, .id = 50 + i, .logits = true}, {.sequence = -1}, {.sequence = 0, .id = 60, .logits = true}};
    ASSERT_TRUE(runner.step(next));
  }
}

// The first rows of an op, up to the step's padding row.
RowRange until_padding(const OpCall& call, const Paging& rows, int64_t most) {
  int64_t count = 0;
  while (count < std::min(call.rows, most) && rows.sequence[call.origin.row(count)] >= 0) ++count;
  return {.count = count};
}

class Watch : public OpObserver {
 public:
  Watch(int64_t most, OpRecorder::Take take)
      : recorder_([this, most](const OpCall& c) { return until_padding(c, rows_, most); }, std::move(take)) {}
  void begin_pass(const Paging& rows) override {
    rows_ = rows;
    recorder_.begin_pass(rows);
  }
  void before(const OpCall& call, Executor& executor) override { recorder_.before(call, executor); }
  void after(const OpCall& call, Executor& executor) override { recorder_.after(call, executor); }

 private:
  Paging rows_{};
  OpRecorder recorder_;
};

struct Setting {
  std::string folder{};
  ModelPlanOptions plan{};
};
std::vector<Setting> settings() {
  return {
      {golden_path("random/base"), {.backend = "reference"}},
      {golden_path("random/base"), {.backend = "cpu"}},
      {golden_path("random/base"), {.backend = "cpu", .kv = "fp8", .numeric_profile = "engine"}},
      {golden_path("random/base"), {.backend = "cpu", .kv = "f32", .numeric_profile = "engine", .activations = "bf16"}},
      {golden_path("random/indexer_shared"), {.backend = "cpu"}},
      {golden_path("random/n_group"), {.backend = "cpu", .isa = "generic"}},
      {model_path(), {.backend = "cpu"}}};
}

TEST(Witness, PassesEveryOpAndEveryAcceptedKernel) {
  for (const Setting& setting : settings()) {
    const auto runner = open(setting.folder, setting.plan);
    ASSERT_NE(runner, nullptr);
    const Plan& plan = runner->planned().plan;
    const Witness witness(plan, registry(), nullptr);
    std::map<Op, int> judged;
    std::map<std::string, int> others;
    Watch watch(40, [&](const OpRecord& record) {
      const std::string place = plan.sites[static_cast<size_t>(record.site())].decl.name;
      const Judgement judgement = witness.judge(record);
      EXPECT_TRUE(judgement.passes()) << setting.folder << ' ' << place << ' ' << record.kernel().contract.name << ": "
                                      << judgement.to_string();
      EXPECT_GT(judgement.compared, 0) << place;
      if (++judged[record.kernel().contract.op] > 6) return;
      for (const Kernel* kernel : witness.accepted(record)) {
        const Result<Judgement> other = witness.judge(record, *kernel);
        ASSERT_TRUE(other) << other.error().to_string();
        EXPECT_TRUE(other->passes()) << place << ' ' << kernel->contract.name << ": " << other->to_string();
        ++others[kernel->contract.name];
      }
    });
    runner->executor().add_observer(watch);
    run_steps(*runner);
    runner->executor().remove_observer(watch);
    EXPECT_EQ(judged.size(), static_cast<size_t>(kOpCount - 4))
        << "all but the sampler, draft sets and ops among ranks";
    EXPECT_GE(others.size(), judged.size());
  }
}

// Changes one number of what the n-th launch of a place wrote.
class Spoiler : public OpObserver {
 public:
  explicit Spoiler(SiteId site) : site_(site) {}
  void before(const OpCall&, Executor&) override {}
  void after(const OpCall& call, Executor&) override {
    if (call.site != site_ || done_) return;
    AnyArgs args = any_args(call.kernel.contract.op, call.args);
    for_tensors(args, [&](const char*, const Tensor& tensor, Role role) {
      if (role == Role::In || tensor.dtype != DType::F32 || done_) return;
      // A position's own score is the only one that the first row has.
      float& value = tensor.row_f32(0)[call.kernel.contract.op == Op::IndexerLogits ? 0 : tensor.dim(1) / 2];
      value = value * 1.5f + 0.5f;
      done_ = true;
    });
  }

 private:
  SiteId site_;
  bool done_ = false;
};

TEST(Witness, NamesTheOpWhoseOutputWasChangedAndNoOther) {
  const auto runner = open(golden_path("random/base"), {.backend = "cpu"});
  ASSERT_NE(runner, nullptr);
  const Plan& plan = runner->planned().plan;
  const Witness witness(plan, registry(), nullptr);
  int tried = 0;
  for (size_t site = 0; site < plan.sites.size(); ++site) {
    const SiteDecl& decl = plan.sites[site].decl;
    if (decl.layer > 1 || decl.call.op == Op::TopK || decl.call.op == Op::Sample || decl.call.op == Op::KvWrite ||
        decl.call.op == Op::FiniteRows)
      continue;
    std::vector<std::string> found;
    Spoiler spoiler(static_cast<SiteId>(site));
    Watch watch(2, [&](const OpRecord& record) {
      if (!witness.judge(record).passes()) found.push_back(plan.sites[static_cast<size_t>(record.site())].decl.name);
    });
    runner->executor().add_observer(spoiler);
    runner->executor().add_observer(watch);
    run_steps(*runner);
    runner->executor().remove_observer(watch);
    runner->executor().remove_observer(spoiler);
    EXPECT_EQ(found, std::vector<std::string>{decl.name});
    ++tried;
  }
  EXPECT_GT(tried, 20);
}

}  // namespace
}  // namespace plumb

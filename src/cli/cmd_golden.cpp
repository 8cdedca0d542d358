// plumb golden make: the golden file beside a model. The reference computes it; the kernels of this machine say how far
// each KV format's rounding moves it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/hash.h"
#include "checkpoint/model_source.h"
#include "cli/build_info.h"
#include "cli/cli.h"
#include "cli/model_options.h"
#include "guard/golden.h"
#include "model/runner.h"
#include "text/tokenizer.h"

namespace plumb {
namespace {

constexpr int kTop = 20;
constexpr int kShort = 32;  // tokens of the short prompts
// What one more rounding, another instruction set, or another order of additions may add to what was measured.
constexpr double kMargin = 3;

struct GoldenCommand {
  ModelOptions model{};
  std::string out{};
};

constexpr const char* kText =
    "In the spring the river rises, and whoever lives beside it learns to count: days of rain, hands of water under "
    "the "
    "door, sheep on the hill. 17 + 25 = 42. The first bridge was of wood, the second of stone, the third was never "
    "finished. def area(width, height): return width * height. Ask the miller what he remembers, then ask his brother, "
    "and write down what they do not agree on. ";

// Text, the same past sparse selection, and ids without meaning.
Result<std::vector<GoldenPrompt>> prompts_for(const Tokenizer& tokenizer, const ModelConfig& config) {
  PLUMB_TRY(const std::vector<int32_t> text, tokenizer.encode(kText));
  if (text.empty()) return Error{Code::Corrupt, "the tokenizer gives no token for a text", "", {}};
  const auto repeated = [&](int count) {
    std::vector<int32_t> ids;
    ids.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) ids.push_back(text[static_cast<size_t>(i) % text.size()]);
    return ids;
  };
  const auto at = [](std::vector<int32_t> ids) {
    const int last = static_cast<int>(ids.size()) - 1;
    return GoldenPrompt{.ids = std::move(ids), .positions = {{.position = last - 9}, {.position = last}}};
  };
  std::vector<GoldenPrompt> prompts = {at(repeated(kShort))};
  const int longer = config.index_topk + kShort;
  if (longer < config.max_position_embeddings) prompts.push_back(at(repeated(longer)));
  std::vector<int32_t> random(kShort);
  const int vocab = std::min(config.vocab_size, tokenizer.vocab_size());
  for (size_t i = 0; i < random.size(); ++i)
    random[i] = static_cast<int32_t>(Hash64().add(i).value() % static_cast<uint64_t>(vocab));
  prompts.push_back(at(std::move(random)));
  return prompts;
}

Result<std::unique_ptr<ModelRunner>> open(const GoldenCommand& command, const std::filesystem::path& folder,
                                          const Registry& registry, const char* backend, const char* kv) {
  RunnerOptions options{.plan = command.model.plan, .threads = command.model.threads};
  options.plan.backend = backend;
  options.plan.kv = kv;
  options.plan.mtp = "off";
  options.plan.max_sequences = 1;
  return ModelRunner::open(folder, registry, options);
}

// Logits at the positions of one prompt: [positions, vocab].
Result<std::vector<float>> logits_at(ModelRunner& runner, const GoldenPrompt& prompt) {
  runner.reset();
  const int first = prompt.positions.front().position;
  const auto count = static_cast<int64_t>(prompt.ids.size()) - first;
  PLUMB_TRY(const std::vector<float> all, runner.feed(prompt.ids, count));
  const auto vocab = static_cast<size_t>(runner.config().vocab_size);
  std::vector<float> out;
  for (const GoldenPosition& p : prompt.positions) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(p.position - first) * vocab);
    out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(vocab));
  }
  return out;
}

Status fill_from_reference(ModelRunner& reference, Golden& golden) {
  const auto vocab = static_cast<size_t>(reference.config().vocab_size);
  std::vector<int32_t> order(vocab);
  for (GoldenPrompt& prompt : golden.prompts) {
    PLUMB_TRY(const std::vector<float> logits, logits_at(reference, prompt));
    for (size_t i = 0; i < prompt.positions.size(); ++i) {
      const float* row = logits.data() + i * vocab;
      std::iota(order.begin(), order.end(), 0);
      const size_t top = std::min<size_t>(kTop, vocab);
      std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top), order.end(),
                        [row](int32_t a, int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
      prompt.positions[i].ids.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top));
      for (const int32_t id : prompt.positions[i].ids) {
        if (!std::isfinite(row[id]))
          return Error{Code::Verification,
                       "the reference computes a logit that is not finite",
                       "a golden file must hold numbers",
                       {"plumb inspect: is the checkpoint whole?"}};
        prompt.positions[i].logits.push_back(row[id]);
      }
    }
  }
  return Ok{};
}

Result<double> distance(ModelRunner& runner, const Golden& golden) {
  const auto vocab = static_cast<size_t>(runner.config().vocab_size);
  double largest = 0;
  for (const GoldenPrompt& prompt : golden.prompts) {
    PLUMB_TRY(const std::vector<float> logits, logits_at(runner, prompt));
    for (size_t i = 0; i < prompt.positions.size(); ++i)
      for (size_t j = 0; j < prompt.positions[i].ids.size(); ++j) {
        const float have = logits[i * vocab + static_cast<size_t>(prompt.positions[i].ids[j])];
        largest = std::max(largest,
                           std::fabs(static_cast<double>(have) - static_cast<double>(prompt.positions[i].logits[j])));
      }
  }
  return largest;
}

Status make(GoldenCommand& command, const CliContext& context) {
  PLUMB_TRY_STATUS(finish_model_options(command.model, context));
  PLUMB_TRY(const ModelSource source, resolve_model(command.model.model, context.hf_home));
  PLUMB_TRY(const Tokenizer tokenizer, Tokenizer::load(source.folder));
  const Registry registry = make_registry();
  Golden golden{.numeric_profile = command.model.plan.numeric_profile, .made_by = "plumb " + build_id()};
  {
    PLUMB_TRY(const auto reference, open(command, source.folder, registry, "reference", "f32"));
    golden.checkpoint = Hash64().add(reference->model().opened.checkpoint->identity_hash()).hex();
    PLUMB_TRY(golden.prompts, prompts_for(tokenizer, reference->config()));
    PLUMB_TRY_STATUS(fill_from_reference(*reference, golden));
  }
  const std::pair<const char*, KvFormat> formats[] = {
      {"f32", KvFormat::F32}, {"bf16", KvFormat::Bf16}, {"fp8", KvFormat::Fp8Tile128}};
  for (const auto& [kv, format] : formats) {
    PLUMB_TRY(const auto runner, open(command, source.folder, registry, "cpu", kv));
    PLUMB_TRY(const double measured, distance(*runner, golden));
    golden.bounds[to_string(format)] = kMargin * measured;
    std::printf("%-12s logits within %.4g of the reference, bound %.4g\n", to_string(format).c_str(), measured,
                kMargin * measured);
  }
  const std::filesystem::path out =
      command.out.empty() ? source.folder / kGoldenFile : std::filesystem::path(command.out);
  PLUMB_TRY_STATUS(write_golden(golden, out));
  std::printf("%s: %zu prompts\n", out.c_str(), golden.prompts.size());
  return Ok{};
}

}  // namespace

void add_golden_command(CLI::App& app, CliContext& context, int& exit_code) {
  auto command = std::make_shared<GoldenCommand>();
  CLI::App* golden = app.add_subcommand("golden", "Reference logits that every start compares with");
  golden->require_subcommand(1);
  CLI::App* sub = golden->add_subcommand("make", "Write plumb-golden.json beside the model");
  sub->add_option("model", command->model.model, "Model folder, or org/name in the local Hugging Face cache")
      ->required();
  sub->add_option("--numeric-profile", command->model.plan.numeric_profile,
                  "transformers, or engine (what serving engines compute)");
  sub->add_option("--threads", command->model.threads, "Worker threads; 0: one a core")->check(CLI::Range(0, 4096));
  sub->add_option("--out", command->out, "Another place for the file");
  sub->callback([command, &context, &exit_code] {
    if (Status status = make(*command, context); !status) exit_code = report(status.error());
  });
}

}  // namespace plumb

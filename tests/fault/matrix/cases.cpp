#include "matrix/cases.h"

#include <algorithm>

namespace plumb::matrix {
namespace {

constexpr size_t kOfEach = 3;  // cases of one kind in one phase and setting

bool lies(const Site& site) {
  const Op op = site.decl.call.op;
  return op == Op::Linear || op == Op::Mlp || op == Op::Moe || op == Op::MlaAttend;
}

// Bugs of one kernel show in one phase; a misread weight or a wrong angle mostly in all.
FaultPhase early_phase(PlantedKind kind) {
  const bool of_a_kernel = kind == PlantedKind::Nan || kind == PlantedKind::Inf || kind == PlantedKind::StaleGraphRow ||
                           kind == PlantedKind::MissingFence || kind == PlantedKind::RankSkew;
  return of_a_kernel ? FaultPhase::Prefill : FaultPhase::Any;
}

// Some of them, spread evenly over the plan; other ones in each of the `parts` settings.
void take_some(const std::vector<Case>& all, size_t index, size_t parts, std::vector<Case>& cases) {
  const size_t count = std::min(all.size(), kOfEach);
  for (size_t i = 0; i < count; ++i) cases.push_back(all[(i * parts + index) * all.size() / (count * parts)]);
}

// Where one kind can live, early and while decoding.
void take_kind(PlantedKind kind, const Plan& plan, size_t index, size_t parts, std::vector<Case>& cases) {
  std::vector<Case> early, decode;
  for (const Site& site : plan.sites) {
    const SiteDecl& decl = site.decl;
    if (!why_not(kind, decl.call).empty()) continue;
    Case one{.place = decl.name, .op = to_string(decl.call.op), .layer = decl.layer};
    one.fault = {.kind = kind, .place = decl.name, .phase = early_phase(kind)};
    early.push_back(one);
    one.fault.phase = FaultPhase::Decode;
    decode.push_back(one);
  }
  take_some(early, index, parts, cases);
  take_some(decode, index, parts, cases);
}

}  // namespace

std::string Setting::name() const {
  std::string text = checkpoint + ", " + backend;
  if (kv != "auto") text += ", kv " + kv;
  if (index_keys != "auto") text += ", index keys " + index_keys;
  if (ranks > 1) text += ", " + std::to_string(ranks) + " ranks";
  return text;
}

std::vector<Setting> settings() {
  return {{.checkpoint = "tiny-glm-dsa-nvfp4"},
          {.checkpoint = "tiny-glm-dsa-nvfp4", .kv = "fp8", .index_keys = "fp8"},
          {.checkpoint = "tiny-glm-dsa-nvfp4", .backend = "reference"},
          {.checkpoint = "tiny-glm-dsa"},
          {.checkpoint = "tiny-glm-dsa-fp8"},
          {.checkpoint = "tiny-glm-dsa-fp8-ue8m0", .kv = "fp8", .index_keys = "fp8"}};
}

std::vector<Setting> rank_settings() {
  return {{.checkpoint = "tiny-glm-dsa-nvfp4", .ranks = 2},
          {.checkpoint = "tiny-glm-dsa-nvfp4", .backend = "reference", .ranks = 4},
          {.checkpoint = "tiny-glm-dsa", .ranks = 2}};
}

std::string Case::phase() const {
  return fault.phase == FaultPhase::Prefill ? "prefill" : fault.phase == FaultPhase::Decode ? "decode" : "all";
}

std::vector<Case> cases_of(const Plan& plan, size_t index) {
  std::vector<Case> cases, lying;
  const size_t parts = settings().size();
  for (int k = 0; k < kPlantedKindCount; ++k)
    if (const auto kind = static_cast<PlantedKind>(k); kind != PlantedKind::RankSkew)
      take_kind(kind, plan, index, parts, cases);
  for (const Site& site : plan.sites)
    if (lies(site))
      lying.push_back({.lying = std::string(to_string(site.decl.call.op)) + ".lying",
                       .place = site.decl.name,
                       .op = to_string(site.decl.call.op),
                       .layer = site.decl.layer});
  take_some(lying, index, parts, cases);
  return cases;
}

std::vector<Case> rank_cases_of(const Plan& plan, size_t index) {
  std::vector<Case> cases;
  take_kind(PlantedKind::RankSkew, plan, index, rank_settings().size(), cases);
  return cases;
}

}  // namespace plumb::matrix

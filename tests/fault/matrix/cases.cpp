#include "matrix/cases.h"

#include <algorithm>

namespace plumb::matrix {
namespace {

// Kinds that live in nearly every op: each place is struck in one setting only. The others in all, and in all layers.
bool lives_anywhere(PlantedKind kind) {
  return kind == PlantedKind::Nan || kind == PlantedKind::Inf || kind == PlantedKind::StaleGraphRow ||
         kind == PlantedKind::MissingFence;
}

bool lies(const Site& site) {
  const Op op = site.decl.call.op;
  return op == Op::Linear || op == Op::Mlp || op == Op::Moe || op == Op::MlaAttend;
}

bool sampled_layer(int layer, int layers) { return layer <= 1 || layer == layers - 1; }

}  // namespace

std::string Setting::name() const {
  std::string text = checkpoint + ", " + backend;
  if (kv != "auto") text += ", kv " + kv;
  if (index_keys != "auto") text += ", index keys " + index_keys;
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

std::string Case::phase() const {
  return fault.phase == FaultPhase::Prefill ? "prefill" : fault.phase == FaultPhase::Decode ? "decode" : "all";
}

std::vector<Case> cases_of(const Plan& plan, int layers, size_t index) {
  std::vector<Case> cases;
  for (size_t s = 0; s < plan.sites.size(); ++s) {
    const SiteDecl& decl = plan.sites[s].decl;
    Case one{.place = decl.name, .op = to_string(decl.call.op), .layer = decl.layer};
    for (int k = 0; k < kPlantedKindCount; ++k) {
      const auto kind = static_cast<PlantedKind>(k);
      if (!why_not(kind, decl.call).empty()) continue;
      // Every place once over all settings, and a different one for each kind.
      if (lives_anywhere(kind) && (s + static_cast<size_t>(k)) % settings().size() != index) continue;
      if (!lives_anywhere(kind) && !sampled_layer(decl.layer, layers) && index % 2 != 0) continue;
      // Bugs of one kernel show in one phase; a misread weight or a wrong angle mostly in all.
      for (const FaultPhase phase :
           {lives_anywhere(kind) ? FaultPhase::Prefill : FaultPhase::Any, FaultPhase::Decode}) {
        one.fault = {.kind = kind, .place = decl.name, .phase = phase};
        cases.push_back(one);
      }
    }
    if (!lies(plan.sites[s]) || !sampled_layer(decl.layer, layers) || index % 2 != 0) continue;
    one.fault = {};
    one.lying = one.op + ".lying";
    cases.push_back(one);
    one.lying.clear();
  }
  return cases;
}

}  // namespace plumb::matrix

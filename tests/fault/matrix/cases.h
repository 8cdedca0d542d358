// Which faults are planted where: kinds x places x phases x formats, thinned so that each kind and each op keeps
// enough.
#pragma once

#include <string>
#include <vector>

#include "guard/fault.h"
#include "model/model_plan.h"

namespace plumb::matrix {

// One way of running one checkpoint.
struct Setting {
  std::string checkpoint{};  // folder name
  std::string backend = "auto", kv = "auto", index_keys = "auto";
  int ranks = 1;
  std::string name() const;
};
std::vector<Setting> settings();
std::vector<Setting> rank_settings();  // of several ranks

struct Case {
  Fault fault{};        // of kind Nan without a place when a lying kernel is pinned instead
  std::string lying{};  // kernel pinned at `place`
  std::string place{}, op{};
  int layer = -1;
  std::string kind() const { return lying.empty() ? std::string(to_string(fault.kind)) : "lying_kernel"; }
  std::string phase() const;
};
// Of the setting numbered `index`. `plan` is that setting's own.
std::vector<Case> cases_of(const Plan& plan, size_t index);
// The same of several ranks: what only they can have.
std::vector<Case> rank_cases_of(const Plan& plan, size_t index);

}  // namespace plumb::matrix

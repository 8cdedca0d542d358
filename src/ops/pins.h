// Kernels pinned by name: "--kernel op=name", "--kernel place=name", "--kernel layers.*.rest=name".
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "ops/plan.h"

namespace plumb {

// The pin that applies to a place: one by its own name wins over one for all layers, and that over its op's. Null:
// none.
const KernelPin* pin_for(const SiteDecl& decl, const std::vector<KernelPin>& pins);

// Every pin has a place to act on, and no two of them the same one. Error: Usage.
Status check_pins(const std::vector<KernelPin>& pins, const std::vector<SiteDecl>& sites);

// Sets choice.kernel to what `pin` names, judged by choice.candidates. Error: Usage (no such kernel) or Unsupported
// (refused there), with what would work: `everywhere` has the kernels that all places of the pin accept.
Status choose_pinned(const SiteDecl& decl, const KernelPin& pin, const std::vector<const Kernel*>& everywhere,
                     Choice& choice);

// "field: this place has A, NAME takes B; ..."
std::string describe(const std::vector<Refusal>& refusals, const std::string& kernel);

}  // namespace plumb

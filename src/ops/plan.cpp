#include "ops/plan.h"

#include <algorithm>

#include "base/check.h"

namespace plumb {
namespace {

// Slow is a choice too: nobody gets the reference without asking for it.
bool wanted_backend(const Contract& contract, const std::string& backend) {
  if (backend == "reference" || contract.reference) return backend == "reference" && contract.reference;
  const bool cuda = contract.arch >= Isa::Sm90a;
  return backend == "cuda" ? cuda : backend == "cpu" ? !cuda : true;  // auto: what the device can run
}

std::string describe(const std::vector<Refusal>& refusals, const std::string& kernel) {
  std::string text;
  for (const Refusal& r : refusals) {
    text += text.empty() ? "" : "; ";
    text += r.field + ": this place has " + r.have + ", " + kernel + " takes " + r.wants;
  }
  return text;
}

std::vector<std::string> accepted_names(const std::vector<Candidate>& candidates, const std::string& flag) {
  std::vector<std::string> names;
  for (const Candidate& c : candidates)
    if (c.refusals.empty()) names.push_back("--kernel " + flag + "=" + c.kernel->contract.name);
  return names;
}

// The pin that applies to a site: its own name wins over its op's.
const std::pair<std::string, std::string>* pin_for(const SiteDecl& decl, const PlanOptions& options) {
  const std::pair<std::string, std::string>* found = nullptr;
  for (const auto& pin : options.pinned) {
    if (pin.first == decl.name) return &pin;
    if (pin.first == to_string(decl.call.op)) found = &pin;
  }
  return found;
}

Error no_kernel(const SiteDecl& decl, const Choice& choice, const PlanOptions& options) {
  std::string why;
  for (const Candidate& c : choice.candidates) {
    if (!wanted_backend(c.kernel->contract, options.backend)) continue;
    why += (why.empty() ? "" : "\n  ") + c.kernel->contract.name + ": " + describe(c.refusals, c.kernel->contract.name);
  }
  if (why.empty()) why = "no kernel of backend '" + options.backend + "' computes " + to_string(decl.call.op);
  std::vector<std::string> works;
  if (options.backend != "reference") works.emplace_back("--backend reference (exact and slow)");
  return {Code::Unsupported,
          "no kernel fits " + decl.name + " (" + to_string(decl.call.op) + ", weight " + decl.call.weight.to_string() +
              ", rows " + std::to_string(choice.rows.m_lo) + " to " + std::to_string(choice.rows.m_hi) + ")",
          why, works};
}

Status choose_pinned(const SiteDecl& decl, const std::pair<std::string, std::string>& pin, Choice& choice) {
  for (const Candidate& c : choice.candidates) {
    if (c.kernel->contract.name != pin.second) continue;
    if (!c.refusals.empty())
      return Error{Code::Unsupported,
                   "--kernel " + pin.first + "=" + pin.second + " cannot be honoured at " + decl.name,
                   describe(c.refusals, pin.second), accepted_names(choice.candidates, pin.first)};
    choice.kernel = c.kernel;
    choice.why = "pinned by --kernel " + pin.first;
    return Ok{};
  }
  return Error{
      Code::Usage,
      "--kernel " + pin.first + "=" + pin.second + ": no kernel of that name computes " + to_string(decl.call.op), "",
      accepted_names(choice.candidates, pin.first)};
}

Status choose(const SiteDecl& decl, const Registry& registry, const DeviceInfo& device, const PlanOptions& options,
              Choice& choice) {
  Call call = decl.call;
  call.m_lo = choice.rows.m_lo;
  call.m_hi = choice.rows.m_hi;
  call.deterministic = options.deterministic;
  for (const Kernel& kernel : registry.kernels)
    if (kernel.contract.op == call.op) choice.candidates.push_back({&kernel, judge(kernel.contract, call, device)});
  if (const auto* pin = pin_for(decl, options)) return choose_pinned(decl, *pin, choice);
  // With one sum order for all rows, what is good for some of them only is good for none.
  const auto preference = [&](const Contract& c) {
    return c.preferred_from <= (options.deterministic ? 1 : call.m_lo) ? c.preference : 0;
  };
  int accepted = 0;
  for (const Candidate& c : choice.candidates) {
    const Contract& contract = c.kernel->contract;
    if (!c.refusals.empty() || !wanted_backend(contract, options.backend)) continue;
    ++accepted;
    if (choice.kernel == nullptr || preference(contract) > preference(choice.kernel->contract))
      choice.kernel = c.kernel;
  }
  if (choice.kernel == nullptr) return no_kernel(decl, choice, options);
  choice.why = options.backend == "reference" ? "--backend reference"
                                              : "preference " + std::to_string(choice.kernel->contract.preference) +
                                                    ", best of " + std::to_string(accepted) + " accepted";
  return Ok{};
}

// One sum order over all row buckets of a place: two invariant kernels that add in different orders are not invariant
// together, and a row moves between buckets.
Status check_sum_order(const Site& site) {
  const std::string& first = site.choices.front().kernel->contract.sum_order;
  for (const Choice& choice : site.choices)
    if (choice.kernel->contract.sum_order != first)
      return Error{Code::Unsupported,
                   "--deterministic cannot be honoured at " + site.decl.name,
                   site.choices.front().kernel->contract.name + " adds in the order '" + first + "', " +
                       choice.kernel->contract.name + " in '" + choice.kernel->contract.sum_order + "'",
                   {"pin one kernel with --kernel " + site.decl.name + "=NAME"}};
  return Ok{};
}

bool known_pin(const std::pair<std::string, std::string>& pin, const std::vector<SiteDecl>& sites) {
  return std::any_of(sites.begin(), sites.end(), [&](const SiteDecl& site) {
    return pin.first == site.name || pin.first == to_string(site.call.op);
  });
}

size_t workspace_of(const Choice& choice, Call call) {
  call.m_lo = choice.rows.m_lo;
  call.m_hi = choice.rows.m_hi;
  const auto bytes = choice.kernel->contract.workspace;
  return bytes != nullptr ? bytes(call) : 0;
}

}  // namespace

const Kernel& Plan::kernel(SiteId site, int64_t rows) const {
  PLUMB_CHECK(site >= 0 && static_cast<size_t>(site) < sites.size(), "unknown site");
  for (const Choice& choice : sites[static_cast<size_t>(site)].choices)
    if (rows <= choice.rows.m_hi) return *choice.kernel;
  PLUMB_CHECK(false, "more rows than the plan has a bucket for");
}

Result<Plan> resolve(std::vector<SiteDecl> sites, const Registry& registry, const DeviceInfo& device,
                     const PlanOptions& options) {
  PLUMB_CHECK(!options.buckets.empty(), "a plan needs row buckets");
  for (const auto& pin : options.pinned)
    if (!known_pin(pin, sites))
      return Error{Code::Usage,
                   "--kernel " + pin.first + "=" + pin.second + " has nothing to act on",
                   "'" + pin.first + "' is neither an op nor a place of this model",
                   {"see plumb plan MODEL for the names"}};
  Plan plan;
  plan.device = device;
  for (SiteDecl& decl : sites) {
    Site site{.decl = std::move(decl)};
    for (const RowBucket& rows : options.buckets) {
      Choice choice{.rows = rows};
      PLUMB_TRY_STATUS(choose(site.decl, registry, device, options, choice));
      plan.workspace_bytes = std::max(plan.workspace_bytes, workspace_of(choice, site.decl.call));
      site.choices.push_back(std::move(choice));
    }
    if (options.deterministic) PLUMB_TRY_STATUS(check_sum_order(site));
    plan.sites.push_back(std::move(site));
  }
  return plan;
}

}  // namespace plumb

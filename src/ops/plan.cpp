#include "ops/plan.h"

#include <algorithm>

#include "base/check.h"
#include "ops/pins.h"

namespace plumb {
namespace {

// Slow is a choice too: nobody gets the reference without asking for it.
bool wanted_backend(const Contract& contract, const std::string& backend) {
  if (backend == "reference" || contract.reference) return backend == "reference" && contract.reference;
  const bool cuda = contract.arch > Isa::Avx512Bf16;
  return backend == "cuda" ? cuda : backend == "cpu" ? !cuda : true;  // auto: what the device can run
}

Error no_kernel(const SiteDecl& decl, const Choice& choice, const PlanOptions& options) {
  std::string why;
  for (const Candidate& c : *choice.candidates) {
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

// Every kernel of the op, with what it refuses. A kernel that reads another layout needs an exact way there.
std::vector<Candidate> judge_all(const Call& call, const Registry& registry, const DeviceInfo& device) {
  std::vector<Candidate> candidates;
  for (const Kernel& kernel : registry.kernels) {
    const Contract& contract = kernel.contract;
    if (contract.op != call.op) continue;
    Candidate candidate{&kernel, judge(contract, call, device)};
    if (contract.weight_layout != Layout::RowMajor && call.n > 0) {
      const auto reachable = [&](const Format& format) {
        return registry.conversion(contract.weight_layout, format) != nullptr;
      };
      if (!reachable(call.weight) || !std::all_of(call.others.begin(), call.others.end(),
                                                  [&](const OtherWeight& other) { return reachable(other.format); }))
        candidate.refusals.push_back({"weight_layout", "weights as the file has them",
                                      to_string(contract.weight_layout) + ", where no exact conversion leads"});
    }
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

Status choose(const SiteDecl& decl, const PlanOptions& options, Choice& choice) {
  // With one sum order for all rows, what is good for some of them only is good for none.
  const auto preference = [&](const Contract& c) {
    return c.preferred_from <= (options.deterministic ? 1 : choice.rows.m_lo) ? c.preference : 0;
  };
  int accepted = 0;
  for (const Candidate& c : *choice.candidates) {
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

// A weight is kept in one layout besides the file's.
Status check_layouts(const Site& site) {
  const Choice* rearranged = nullptr;
  for (const Choice& choice : site.choices) {
    const Layout layout = choice.kernel->contract.weight_layout;
    if (layout == Layout::RowMajor) continue;
    if (rearranged != nullptr && rearranged->kernel->contract.weight_layout != layout)
      return Error{Code::Unsupported,
                   site.decl.name + " has kernels of two weight layouts",
                   rearranged->kernel->contract.name + " reads " +
                       to_string(rearranged->kernel->contract.weight_layout) + ", " + choice.kernel->contract.name +
                       " reads " + to_string(layout) + "; a weight is kept in one layout besides the file's",
                   {"one kernel for all rows: --kernel " + site.decl.name + "=NAME"}};
    rearranged = &choice;
  }
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

namespace {

// Judges every kernel once for equal places of different layers.
class Judge {
 public:
  Judge(const Registry& registry, const DeviceInfo& device, const PlanOptions& options)
      : registry_(registry), device_(device), options_(options) {}

  // Without a kernel yet.
  Choice choice(const SiteDecl& decl, const RowBucket& rows) {
    Call call = decl.call;
    call.m_lo = rows.m_lo;
    call.m_hi = rows.m_hi;
    call.deterministic = options_.deterministic;
    return {.rows = rows, .candidates = candidates(call)};
  }

  // Kernels that every place of a pin accepts, the preferred first: what its refusal offers.
  std::vector<const Kernel*> accepted_everywhere(const KernelPin& pin, const std::vector<SiteDecl>& sites) {
    std::vector<const Kernel*> kernels;
    for (const Kernel& kernel : registry_.kernels) kernels.push_back(&kernel);
    for (const SiteDecl& decl : sites) {
      if (pin_for(decl, options_.pinned) != &pin) continue;
      for (const RowBucket& rows : options_.buckets)
        std::erase_if(kernels, [of = choice(decl, rows).candidates](const Kernel* kernel) {
          return std::ranges::none_of(*of,
                                      [&](const Candidate& c) { return c.kernel == kernel && c.refusals.empty(); });
        });
    }
    std::ranges::stable_sort(kernels, std::ranges::greater{},
                             [](const Kernel* kernel) { return kernel->contract.preference; });
    return kernels;
  }

 private:
  std::shared_ptr<const std::vector<Candidate>> candidates(const Call& call) {
    for (const auto& [known, list] : judged_)
      if (known == call) return list;
    return judged_
        .emplace_back(call, std::make_shared<const std::vector<Candidate>>(judge_all(call, registry_, device_)))
        .second;
  }

  const Registry& registry_;
  const DeviceInfo& device_;
  const PlanOptions& options_;
  std::vector<std::pair<Call, std::shared_ptr<const std::vector<Candidate>>>> judged_{};
};

// Before anything else: what a refusal offers is judged at all places of its pin.
Status honour_pins(Judge& judge, const std::vector<SiteDecl>& sites, const PlanOptions& options) {
  for (const SiteDecl& decl : sites) {
    const KernelPin* pin = pin_for(decl, options.pinned);
    if (pin == nullptr) continue;
    for (const RowBucket& rows : options.buckets) {
      Choice choice = judge.choice(decl, rows);
      if (!choose_pinned(decl, *pin, {}, choice))
        return choose_pinned(decl, *pin, judge.accepted_everywhere(*pin, sites), choice);
    }
  }
  return Ok{};
}

}  // namespace

Result<Plan> resolve(std::vector<SiteDecl> sites, const Registry& registry, const DeviceInfo& device,
                     const PlanOptions& options) {
  PLUMB_CHECK(!options.buckets.empty(), "a plan needs row buckets");
  PLUMB_TRY_STATUS(check_pins(options.pinned, sites));
  Plan plan;
  plan.device = device;
  Judge judge(registry, device, options);
  PLUMB_TRY_STATUS(honour_pins(judge, sites, options));
  for (SiteDecl& decl : sites) {
    Site site{.decl = std::move(decl)};
    const KernelPin* pin = pin_for(site.decl, options.pinned);
    for (const RowBucket& rows : options.buckets) {
      Choice choice = judge.choice(site.decl, rows);
      PLUMB_TRY_STATUS(pin != nullptr ? choose_pinned(site.decl, *pin, {}, choice)
                                      : choose(site.decl, options, choice));
      plan.workspace_bytes = std::max(plan.workspace_bytes, workspace_of(choice, site.decl.call));
      site.choices.push_back(std::move(choice));
    }
    if (options.deterministic) PLUMB_TRY_STATUS(check_sum_order(site));
    PLUMB_TRY_STATUS(check_layouts(site));
    plan.sites.push_back(std::move(site));
  }
  return plan;
}

}  // namespace plumb

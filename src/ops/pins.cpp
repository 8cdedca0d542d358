#include "ops/pins.h"

#include <algorithm>
#include <cctype>

namespace plumb {
namespace {

constexpr std::string_view kAnyLayer = "layers.*.";

// "layers.*.mlp.experts" for "layers.12.mlp.experts"
bool in_any_layer(std::string_view place, std::string_view key) {
  if (!key.starts_with(kAnyLayer) || !place.starts_with("layers.")) return false;
  place.remove_prefix(std::string_view("layers.").size());
  size_t digits = 0;
  while (digits < place.size() && std::isdigit(static_cast<unsigned char>(place[digits])) != 0) ++digits;
  return digits > 0 && place.substr(digits).starts_with('.') &&
         place.substr(digits + 1) == key.substr(kAnyLayer.size());
}

enum Nearness { None, OfItsOp, OfAllLayers, OfThePlace };

Nearness nearness(const KernelPin& pin, const SiteDecl& decl) {
  if (pin.first == decl.name) return OfThePlace;
  if (in_any_layer(decl.name, pin.first)) return OfAllLayers;
  return pin.first == to_string(decl.call.op) ? OfItsOp : None;
}

std::string flag_of(const std::string& key, const std::string& kernel) { return "--kernel " + key + "=" + kernel; }

// Kernels below 0 are witnesses, which nobody serves with, and what builds with planted faults have.
bool offered(const Kernel& kernel) { return kernel.contract.preference >= 0; }

std::vector<std::string> accepted_names(const Choice& choice, const std::string& key) {
  std::vector<std::string> flags;
  for (const Candidate& c : *choice.candidates)
    if (c.refusals.empty() && offered(*c.kernel)) flags.push_back(flag_of(key, c.kernel->contract.name));
  return flags;
}

// A pin of many places: a kernel for all of them, leaving it out, or one for the place that refused.
std::vector<std::string> what_works(const SiteDecl& decl, const KernelPin& pin,
                                    const std::vector<const Kernel*>& everywhere, const Choice& choice) {
  if (pin.first == decl.name) return accepted_names(choice, pin.first);
  std::vector<std::string> works;
  const auto add = [&](bool references) {
    for (const Kernel* kernel : everywhere)
      if (offered(*kernel) && kernel->contract.reference == references)
        works.push_back(flag_of(pin.first, kernel->contract.name) +
                        (references ? " (fits all its places; exact and slow)" : " (fits all its places)"));
  };
  add(/*references=*/false);
  works.push_back("no --kernel " + pin.first + " at all (each place gets the best that fits it)");
  add(/*references=*/true);
  const std::vector<std::string> here = accepted_names(choice, decl.name);
  works.insert(works.end(), here.begin(), here.end());
  return works;
}

}  // namespace

std::string describe(const std::vector<Refusal>& refusals, const std::string& kernel) {
  std::string text;
  for (const Refusal& r : refusals) {
    text += text.empty() ? "" : "; ";
    text += r.field + ": this place has " + r.have + ", " + kernel + " takes " + r.wants;
  }
  return text;
}

const KernelPin* pin_for(const SiteDecl& decl, const std::vector<KernelPin>& pins) {
  const KernelPin* found = nullptr;
  Nearness best = None;
  for (const KernelPin& pin : pins) {
    const Nearness near = nearness(pin, decl);
    if (near <= best) continue;
    best = near;
    found = &pin;
  }
  return found;
}

Status check_pins(const std::vector<KernelPin>& pins, const std::vector<SiteDecl>& sites) {
  for (const KernelPin& pin : pins) {
    if (std::none_of(sites.begin(), sites.end(), [&](const SiteDecl& site) { return nearness(pin, site) != None; }))
      return Error{Code::Usage,
                   flag_of(pin.first, pin.second) + " has nothing to act on",
                   "'" + pin.first + "' is neither an op nor a place of this model",
                   {"see plumb plan MODEL for the names"}};
    for (const KernelPin& other : pins)
      if (other.first == pin.first && other.second != pin.second)
        return Error{
            Code::Usage,
            flag_of(pin.first, pin.second) + " and " + flag_of(other.first, other.second) + " can't both be honoured",
            "a place has one kernel",
            {"one of the two"}};
  }
  return Ok{};
}

Status choose_pinned(const SiteDecl& decl, const KernelPin& pin, const std::vector<const Kernel*>& everywhere,
                     Choice& choice) {
  for (const Candidate& c : *choice.candidates) {
    if (c.kernel->contract.name != pin.second) continue;
    if (!c.refusals.empty())
      return Error{Code::Unsupported, flag_of(pin.first, pin.second) + " cannot be honoured at " + decl.name,
                   describe(c.refusals, pin.second), what_works(decl, pin, everywhere, choice)};
    choice.kernel = c.kernel;
    choice.why = "pinned by --kernel " + pin.first;
    return Ok{};
  }
  return Error{Code::Usage,
               flag_of(pin.first, pin.second) + ": no kernel of that name computes " + to_string(decl.call.op), "",
               what_works(decl, pin, everywhere, choice)};
}

}  // namespace plumb

// The plan as people and programs read it.
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/hash.h"
#include "ops/plan.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

// "layers.12.mlp.experts" -> "layers.*.mlp.experts", so that equal layers fold into one line.
std::string family(const SiteDecl& decl) {
  if (decl.layer < 0) return decl.name;
  const std::string number = std::to_string(decl.layer);
  const size_t at = decl.name.find("." + number + ".");
  if (at == std::string::npos) return decl.name;
  return decl.name.substr(0, at + 1) + "*" + decl.name.substr(at + 1 + number.size());
}

std::string call_text(const Call& call) {
  std::string text = call.n > 0 ? call.weight.to_string() : "";
  for (const OtherWeight& other : call.others) text += " and " + other.format.to_string();
  if (call.n > 0) text += " " + std::to_string(call.n) + "x" + std::to_string(call.k);
  if (call.kv != KvFormat::None) text += (text.empty() ? "kv " : ", kv ") + to_string(call.kv);
  if (call.index_key != IndexKeyFormat::None)
    text += (text.empty() ? "index " : ", index ") + to_string(call.index_key);
  return text;
}

std::string rows_text(const RowBucket& rows) {
  return rows.m_lo == rows.m_hi ? std::to_string(rows.m_lo)
                                : std::to_string(rows.m_lo) + "-" + std::to_string(rows.m_hi);
}

// Neighbouring buckets with the same kernel share a line.
std::vector<Choice> folded(const std::vector<Choice>& choices) {
  std::vector<Choice> out;
  for (const Choice& choice : choices) {
    if (!out.empty() && out.back().kernel == choice.kernel)
      out.back().rows.m_hi = choice.rows.m_hi;
    else
      out.push_back(choice);
  }
  return out;
}

std::string layer_ranges(const std::vector<int>& layers) {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t j = i;
    while (j + 1 < layers.size() && layers[j + 1] == layers[j] + 1) ++j;
    text += (text.empty() ? "" : ",") + std::to_string(layers[i]);
    if (j > i) text += "-" + std::to_string(layers[j]);
    i = j + 1;
  }
  return text;
}

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

Json candidates_json(const Choice& choice) {
  Json list = Json::array();
  for (const Candidate& c : *choice.candidates) {
    Json refusals = Json::array();
    for (const Refusal& r : c.refusals) refusals.push_back({{"field", r.field}, {"have", r.have}, {"wants", r.wants}});
    list.push_back({{"kernel", c.kernel->contract.name}, {"accepted", c.refusals.empty()}, {"refusals", refusals}});
  }
  return list;
}

template <class T, class Text>
Json texts_json(const std::vector<T>& values, Text text) {
  Json list = Json::array();
  for (const T& value : values) list.push_back(text(value));
  return list;
}

Json contract_json(const Contract& c) {
  const auto format = [](const Format& f) { return f.to_string(); };
  Json limits = Json::object();
  const auto limit = [&](const char* name, int64_t value, int64_t none) {
    if (value != none) limits[name] = value;
  };
  limit("m_max", c.limits.m_max, 0);
  limit("n_multiple", c.limits.n_multiple, 1);
  limit("k_multiple", c.limits.k_multiple, 1);
  limit("n_max", c.limits.n_max, 0);
  limit("k_max", c.limits.k_max, 0);
  limit("heads_max", c.limits.heads_max, 0);
  limit("topk_max", c.limits.topk_max, 0);
  limit("shared_bytes", c.limits.shared_bytes, 0);
  limit("ranks_max", c.limits.ranks_max, 0);
  limit("message_bytes_max", c.limits.message_bytes_max, 0);
  if (c.own_device) limits["own_device"] = true;
  limit("peer_bytes", c.peer_bytes, 0);
  return {{"kernel", c.name},
          {"op", to_string(c.op)},
          {"weight", texts_json(c.weight, format)},
          {"weight_layout", to_string(c.weight_layout)},
          {"mixed_weights", c.mixed_weights},
          {"reads", texts_json(c.reads, format)},
          {"writes", c.writes.to_string()},
          {"kv", texts_json(c.kv, [](KvFormat f) { return to_string(f); })},
          {"index_key", texts_json(c.index_key, [](IndexKeyFormat f) { return to_string(f); })},
          {"accumulate", Format{c.accumulate}.to_string()},
          {"promote_every", c.promote_every},
          {"arch", to_string(c.arch)},
          {"limits", limits},
          {"deterministic", c.deterministic},
          {"batch_invariant", c.batch_invariant},
          {"sum_order", c.sum_order},
          {"error_bound",
           {{"c", c.error_bound.c}, {"unit", Format{c.error_bound.unit}.to_string()}, {"floor", c.error_bound.floor}}},
          {"preference", c.preference}};
}

std::string human_bytes(int64_t bytes) {
  const char* unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int i = 0;
  for (; value >= 1024 && i < 4; ++i) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, i == 0 ? "%.0f %s" : "%.2f %s", value, unit[i]);
  return text;
}

}  // namespace

std::string Plan::fingerprint() const {
  Hash64 hash;
  hash.add(numeric_profile).add(device.name);
  for (const Site& site : sites) {
    hash.add(site.decl.name).add(call_text(site.decl.call));
    const Numerics& n = site.decl.call.numerics;
    hash.add(uint64_t{n.round_bf16} | uint64_t{n.norm_two_roundings} << 1 | uint64_t{n.rope_bf16} << 2 |
             uint64_t{n.index_hadamard} << 3);
    for (const Choice& choice : folded(site.choices))
      hash.add(rows_text(choice.rows)).add(choice.kernel->contract.name);
  }
  for (const FlagLine& flag : flags) hash.add(flag.name).add(flag.effective);
  return hash.hex();
}

namespace {

// Places that differ in their layer alone, with the same kernels.
struct Group {
  const Site* site = nullptr;
  std::vector<Choice> choices{};
  std::vector<int> layers{};
};

std::vector<Group> grouped(const std::vector<Site>& sites) {
  std::vector<Group> groups;
  std::map<std::string, size_t> known;
  for (const Site& site : sites) {
    std::vector<Choice> choices = folded(site.choices);
    std::string key = family(site.decl) + call_text(site.decl.call);
    for (const Choice& c : choices) key += rows_text(c.rows) + c.kernel->contract.name;
    const auto [at, added] = known.emplace(std::move(key), groups.size());
    if (added) groups.push_back({.site = &site, .choices = std::move(choices)});
    if (site.decl.layer >= 0) groups[at->second].layers.push_back(site.decl.layer);
  }
  return groups;
}

bool runs_in(const Phase& phase, const Group& group, const RowBucket& rows, int draft_layer) {
  if (!phase.absent.empty() || rows.m_lo > phase.rows.m_hi || rows.m_hi < phase.rows.m_lo) return false;
  const int layer = group.site->decl.layer;
  return layer < 0 || (layer == draft_layer) == phase.draft;
}

std::string phases_text(const std::vector<Phase>& phases, const Group& group, const RowBucket& rows, int draft_layer) {
  std::string text;
  for (const Phase& phase : phases)
    if (runs_in(phase, group, rows, draft_layer)) text += (text.empty() ? "" : ", ") + phase.name;
  return text;
}

Json memory_json(const std::vector<std::pair<std::string, int64_t>>& memory) {
  return texts_json(memory, [](const auto& m) { return Json{{"category", m.first}, {"bytes", m.second}}; });
}

}  // namespace

Json Plan::to_json() const {
  Json out;
  out["fingerprint"] = fingerprint();
  out["device"] = device.name;
  out["devices"] = fit.devices;
  out["numeric_profile"] = numeric_profile;
  for (const FlagLine& f : flags)
    out["flags"].push_back({{"name", f.name}, {"asked", f.asked}, {"effective", f.effective}, {"source", f.source}});
  out["notes"] = notes;
  out["warnings"] = texts_json(warnings, [](const Warning& w) {
    return Json{{"verdict", w.verdict}, {"text", w.text}};
  });
  out["phases"] = texts_json(phases, [](const Phase& p) {
    if (!p.absent.empty()) return Json{{"name", p.name}, {"absent", p.absent}};
    return Json{{"name", p.name}, {"rows", rows_text(p.rows)}};
  });
  out["conversions"] = texts_json(conversions, [](const ConversionLine& c) {
    return Json{{"to", to_string(c.to)},
                {"format", c.format.to_string()},
                {"kind", c.rounding ? "rounding" : "exact"},
                {"weights", c.weights},
                {"bytes", c.bytes}};
  });
  out["memory"] = memory_json(memory);
  out["host_memory"] = memory_json(host_memory);
  out["fit"] = {{"devices", fit.devices},
                {"device_bytes", fit.device_bytes},
                {"bound", fit.bound},
                {"usable", fit.usable},
                {"planned", fit.planned},
                {"cache_tokens", fit.cache_tokens},
                {"cache_tokens_most", fit.cache_tokens_most},
                {"context", fit.context},
                {"sequences", fit.sequences}};
  std::map<std::string, const Contract*> used;
  for (const Group& group : grouped(sites)) {
    Json choices = Json::array();
    for (const Choice& c : group.choices) {
      used.emplace(c.kernel->contract.name, &c.kernel->contract);
      choices.push_back({{"rows", rows_text(c.rows)},
                         {"phases", phases_text(phases, group, c.rows, draft_layer)},
                         {"kernel", c.kernel->contract.name},
                         {"why", c.why},
                         {"candidates", candidates_json(c)}});
    }
    const SiteDecl& decl = group.site->decl;
    out["sites"].push_back({{"name", group.layers.size() > 1 ? family(decl) : decl.name},
                            {"layers", layer_ranges(group.layers)},
                            {"op", to_string(decl.call.op)},
                            {"on", call_text(decl.call)},
                            {"choices", choices}});
  }
  for (const auto& [name, contract] : used) out["contracts"].push_back(contract_json(*contract));
  return out;
}

namespace {

std::string sites_table(const Plan& plan) {
  std::string text;
  for (const Group& group : grouped(plan.sites)) {
    const SiteDecl& decl = group.site->decl;
    for (const Choice& c : group.choices) {
      text += padded(family(decl), 40) + " " + padded(call_text(decl.call), 46) + " rows " +
              padded(rows_text(c.rows), 9) + " " + c.kernel->contract.name;
      if (!group.layers.empty()) text += "   (layers " + layer_ranges(group.layers) + ")";
      if (group.choices.size() > 1) text += "   " + phases_text(plan.phases, group, c.rows, plan.draft_layer);
      text += "\n";
    }
  }
  return text;
}

std::string steps_table(const std::vector<Phase>& phases) {
  std::string text = phases.empty() ? "" : "\nsteps\n";
  for (const Phase& p : phases)
    text +=
        "  " + padded(p.name, 24) + " " + (p.absent.empty() ? "rows " + rows_text(p.rows) : "none: " + p.absent) + "\n";
  return text;
}

std::string flags_table(const std::vector<FlagLine>& flags) {
  std::string text = "\nflag                     asked            effective        from\n";
  for (const FlagLine& f : flags)
    text += padded(f.name, 24) + " " + padded(f.asked, 16) + " " + padded(f.effective, 16) + " " + f.source + "\n";
  return text;
}

std::string conversions_table(const std::vector<ConversionLine>& conversions) {
  std::string text = conversions.empty() ? "" : "\nre-arranged when loading\n";
  for (const ConversionLine& c : conversions)
    text += "  " + padded(std::to_string(c.weights) + " weights in " + c.format.to_string(), 46) + " to " +
            to_string(c.to) + (c.rounding ? ", rounding" : ", exact") + "\n";
  return text;
}

std::string memory_table(const Plan& plan) {
  const auto& fit = plan.fit;
  std::string text;
  if (!plan.memory.empty()) text += fit.devices > 1 ? "\nmemory of each device\n" : "\nmemory\n";
  for (const auto& [name, bytes] : plan.memory) text += "  " + padded(name, 46) + " " + human_bytes(bytes) + "\n";
  if (fit.planned > 0) {
    text += "  " + padded("together", 46) + " " + human_bytes(fit.planned);
    if (fit.device_bytes > 0)
      text += " of " + human_bytes(fit.usable) + " usable (" + fit.bound + ": " + human_bytes(fit.device_bytes) + ")";
    text += "\n";
  }
  for (const auto& [name, bytes] : plan.host_memory)
    text += "  " + padded("host: " + name, 46) + " " + human_bytes(bytes) + "\n";
  return text;
}

}  // namespace

std::string Plan::to_table() const {
  const std::string devices = fit.devices > 1 ? std::to_string(fit.devices) + " x " : "";
  std::string text = "plan " + fingerprint() + "   device " + devices + device.name + "   numerics " + numeric_profile +
                     "\n\n" + sites_table(*this) + steps_table(phases) + flags_table(flags) +
                     conversions_table(conversions) + memory_table(*this);
  if (!notes.empty()) text += "\nnotes\n";
  for (const std::string& note : notes) text += "  - " + note + "\n";
  if (!warnings.empty()) text += "\nwarnings\n";
  for (const Warning& warning : warnings) text += "  - " + warning.verdict + ": " + warning.text + "\n";
  return text;
}

}  // namespace plumb

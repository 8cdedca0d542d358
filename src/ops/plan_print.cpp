// The plan as people and programs read it.
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
  for (const Candidate& c : choice.candidates) {
    Json refusals = Json::array();
    for (const Refusal& r : c.refusals) refusals.push_back({{"field", r.field}, {"have", r.have}, {"wants", r.wants}});
    list.push_back({{"kernel", c.kernel->contract.name}, {"accepted", c.refusals.empty()}, {"refusals", refusals}});
  }
  return list;
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

Json Plan::to_json() const {
  Json out;
  out["fingerprint"] = fingerprint();
  out["device"] = device.name;
  out["numeric_profile"] = numeric_profile;
  for (const FlagLine& f : flags)
    out["flags"].push_back({{"name", f.name}, {"asked", f.asked}, {"effective", f.effective}, {"source", f.source}});
  out["notes"] = notes;
  for (const auto& [name, bytes] : memory) out["memory"].push_back({{"category", name}, {"bytes", bytes}});
  for (const Site& site : sites) {
    Json choices = Json::array();
    for (const Choice& c : folded(site.choices))
      choices.push_back({{"rows", rows_text(c.rows)},
                         {"kernel", c.kernel->contract.name},
                         {"why", c.why},
                         {"candidates", candidates_json(c)}});
    out["sites"].push_back({{"name", site.decl.name},
                            {"op", to_string(site.decl.call.op)},
                            {"on", call_text(site.decl.call)},
                            {"choices", choices}});
  }
  return out;
}

std::string Plan::to_table() const {
  std::string text = "plan " + fingerprint() + "   device " + device.name + "   numerics " + numeric_profile + "\n\n";
  std::vector<std::string> order;
  std::map<std::string, std::vector<int>> layers;
  for (const Site& site : sites) {
    for (const Choice& c : folded(site.choices)) {
      std::string line = padded(family(site.decl), 40) + " " + padded(call_text(site.decl.call), 46) + " rows " +
                         padded(rows_text(c.rows), 9) + " " + c.kernel->contract.name;
      if (!layers.contains(line)) order.push_back(line);
      layers[line].push_back(site.decl.layer);
    }
  }
  for (const std::string& line : order) {
    text += line;
    if (layers[line].front() >= 0) text += "   (layers " + layer_ranges(layers[line]) + ")";
    text += "\n";
  }
  text += "\nflag                     asked            effective        from\n";
  for (const FlagLine& f : flags)
    text += padded(f.name, 24) + " " + padded(f.asked, 16) + " " + padded(f.effective, 16) + " " + f.source + "\n";
  if (!memory.empty()) text += "\nmemory\n";
  for (const auto& [name, bytes] : memory) text += "  " + padded(name, 38) + " " + human_bytes(bytes) + "\n";
  if (!notes.empty()) text += "\nnotes\n";
  for (const std::string& note : notes) text += "  - " + note + "\n";
  return text;
}

}  // namespace plumb

#include "guard/receipt.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace plumb {
namespace {

const char* text_of(Check::Verdict verdict) {
  return verdict == Check::Verdict::Passed ? "passed" : verdict == Check::Verdict::Failed ? "failed" : "skipped";
}

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// A problem of several lines, below the name of its check.
std::string indented(std::string text) {
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1)) text.insert(at + 1, "    ");
  return text;
}

// JSON has no infinity.
nlohmann::ordered_json finite(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json("infinite");
}

nlohmann::ordered_json to_json(const Check& check) {
  nlohmann::ordered_json json = {{"name", check.name}, {"verdict", text_of(check.verdict)}};
  if (check.verdict != Check::Verdict::Skipped) {
    json["figure"] = finite(check.figure);
    json["bound"] = check.bound;
    json["unit"] = check.unit;
  }
  json["sample"] = check.sample;
  if (!check.problems.empty()) json["problems"] = check.problems;
  if (!check.worst.site.empty()) {
    nlohmann::ordered_json op = {{"layer", check.worst.layer},
                                 {"site", check.worst.site},
                                 {"op", check.worst.op},
                                 {"kernel", check.worst.kernel}};
    if (!check.worst.deviation.empty()) {
      op["deviation"] = check.worst.deviation;
      op["kernels_that_pass"] = check.worst.passing;
    }
    json["worst_op"] = std::move(op);
  }
  json["seconds"] = check.seconds;
  return json;
}

}  // namespace

bool Receipt::passed() const {
  return std::ranges::none_of(checks, [](const Check& c) { return c.verdict == Check::Verdict::Failed; });
}

nlohmann::ordered_json Receipt::to_json() const {
  nlohmann::ordered_json json = {{"verdict", passed() ? "verified" : "failed"},
                                 {"level", level},
                                 {"fingerprint", fingerprint},
                                 {"plan", plan},
                                 {"seconds", seconds},
                                 {"checks", nlohmann::ordered_json::array()}};
  for (const Check& check : checks) json["checks"].push_back(plumb::to_json(check));
  return json;
}

Error Receipt::to_error() const {
  Error error{Code::Verification, "verification failed", "", {}};
  std::vector<const Check*> told;  // each with another op
  for (const Check& check : checks) {
    if (check.verdict != Check::Verdict::Failed) continue;
    error.what += (error.what.ends_with("failed") ? ": " : ", ") + check.name;
    const bool has_op = !check.worst.deviation.empty();
    const auto same = std::ranges::find_if(told, [&](const Check* other) {
      return has_op && other->worst.site == check.worst.site && other->worst.kernel == check.worst.kernel;
    });
    std::string figure;
    if (!(check.figure <= check.bound))
      figure = " " + check.unit + " is " + number(check.figure) + ", allowed is " + number(check.bound);
    error.why += (error.why.empty() ? "" : "\n  ") + check.name + ":" + figure;
    if (same != told.end()) {
      error.why += (figure.empty() ? " " : "; ") + ("the same op as " + (*same)->name);
      continue;
    }
    for (const std::string& problem : check.problems) error.why += "\n    " + indented(problem);
    if (!has_op) continue;
    told.push_back(&check);
    error.why += "\n    first op out of bound: " + check.worst.site + " (" + check.worst.op + ", kernel " +
                 check.worst.kernel + "): " + check.worst.deviation;
    for (const std::string& kernel : check.worst.passing)
      error.works.push_back("--kernel " + check.worst.site + "=" + kernel + " (passes on the same inputs" +
                            (&kernel == check.worst.passing.data() ? "" : ", like the one before: one is enough") +
                            ")");
  }
  error.works.emplace_back("plumb check with the same options, which looks at every op");
  error.works.emplace_back("--backend reference (exact and slow)");
  return error;
}

Status write_receipt(const Receipt& receipt, const std::string& path) {
  const std::string part = path + ".part";
  std::ofstream file(part);
  file << receipt.to_json().dump(1) << '\n';
  file.close();
  if (file && std::rename(part.c_str(), path.c_str()) == 0) return Ok{};
  std::remove(part.c_str());
  return Error{
      Code::Environment, "the verification receipt can't be written to " + path, "", {"a path that is writable"}};
}

}  // namespace plumb

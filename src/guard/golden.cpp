#include "guard/golden.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kVersion = 1;

Error broken(const std::filesystem::path& path, const std::string& why) {
  return {Code::Corrupt,
          path.string() + " is not a golden file of version " + std::to_string(kVersion),
          why,
          {"plumb golden make, which writes it anew"}};
}

}  // namespace

Status write_golden(const Golden& golden, const std::filesystem::path& path) {
  Json prompts = Json::array();
  for (const GoldenPrompt& prompt : golden.prompts) {
    Json positions = Json::array();
    for (const GoldenPosition& p : prompt.positions)
      positions.push_back({{"position", p.position}, {"ids", p.ids}, {"logits", p.logits}});
    prompts.push_back({{"ids", prompt.ids}, {"positions", std::move(positions)}});
  }
  const Json json = {
      {"version", kVersion},       {"checkpoint", golden.checkpoint}, {"numeric_profile", golden.numeric_profile},
      {"made_by", golden.made_by}, {"bounds", golden.bounds},         {"prompts", std::move(prompts)}};
  const std::filesystem::path part = path.string() + ".part";
  std::ofstream file(part);
  file << json.dump() << '\n';
  file.close();
  if (file && std::rename(part.c_str(), path.c_str()) == 0) return Ok{};
  std::remove(part.c_str());
  return Error{Code::Environment, "the golden file can't be written to " + path.string(), "", {"--out FILE"}};
}

Result<Golden> read_golden(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return Error{Code::NotFound, "there is no " + path.string(), "", {"plumb golden make"}};
  const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("version", 0) != kVersion) return broken(path, "no JSON object of that version");
  try {
    Golden golden{.checkpoint = json.at("checkpoint").get<std::string>(),
                  .numeric_profile = json.at("numeric_profile").get<std::string>(),
                  .made_by = json.at("made_by").get<std::string>(),
                  .bounds = json.at("bounds").get<std::map<std::string, double>>()};
    for (const Json& p : json.at("prompts")) {
      GoldenPrompt prompt{.ids = p.at("ids").get<std::vector<int32_t>>()};
      for (const Json& at : p.at("positions")) {
        prompt.positions.push_back({.position = at.at("position").get<int>(),
                                    .ids = at.at("ids").get<std::vector<int32_t>>(),
                                    .logits = at.at("logits").get<std::vector<float>>()});
        const GoldenPosition& last = prompt.positions.back();
        if (last.position < 0 || last.position >= static_cast<int>(prompt.ids.size()) || last.ids.empty() ||
            last.ids.size() != last.logits.size())
          return broken(path, "a position lies outside its prompt, or has no logit for each id");
      }
      golden.prompts.push_back(std::move(prompt));
    }
    return golden;
  } catch (const Json::exception& problem) {
    return broken(path, problem.what());
  }
}

}  // namespace plumb

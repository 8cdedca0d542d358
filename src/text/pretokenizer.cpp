#include "text/pretokenizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace plumb {
namespace {

using Json = nlohmann::json;

// GPT-2's pattern, which ByteLevel applies when `use_regex` is on.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Error refuse(std::string what) {
  return {Code::Unsupported, "tokenizer.json: " + std::move(what), "token ids would differ from the original's", {}};
}

using Pieces = std::vector<std::string_view>;

Result<Pieces> isolate(const Regex& pattern, const Pieces& pieces) {
  Pieces out;
  size_t current = 0;
  size_t done = 0;
  const auto finish = [&](size_t text) {  // the rest of this piece, and those up to `text` whole
    for (; current < text; ++current, done = 0)
      if (done < pieces[current].size()) out.push_back(pieces[current].substr(done));
  };
  const auto take = [&](const Regex::Match& match) {
    finish(match.text);
    if (match.begin > done) out.push_back(pieces[current].substr(done, match.begin - done));
    if (match.end > match.begin) out.push_back(pieces[current].substr(match.begin, match.end - match.begin));
    done = match.end;
  };
  PLUMB_TRY_STATUS(pattern.find_all(pieces, take));
  finish(pieces.size());
  return out;
}

bool flag(const Json& node, const char* key, bool otherwise) {
  const auto it = node.find(key);
  return it != node.end() && it->is_boolean() ? it->get<bool>() : otherwise;
}

std::string type_of(const Json& node) {
  const auto it = node.is_object() ? node.find("type") : node.end();
  return node.is_object() && it != node.end() && it->is_string() ? it->get<std::string>() : "(none)";
}

}  // namespace

Result<PreTokenizer> PreTokenizer::parse(const Json& node) {
  PreTokenizer out;
  if (type_of(node) == "Sequence") {
    const auto parts = node.find("pretokenizers");
    if (parts == node.end() || !parts->is_array()) return refuse("pre_tokenizer Sequence without 'pretokenizers'");
    for (const Json& part : *parts) PLUMB_TRY_STATUS(out.add(part));
  } else {
    PLUMB_TRY_STATUS(out.add(node));
  }
  if (!out.byte_level_) return refuse("pre_tokenizer has no ByteLevel: only byte-level vocabularies are read");
  return out;
}

Status PreTokenizer::add(const Json& node) {
  const std::string type = type_of(node);
  if (byte_level_) return refuse(fmt::format("pre_tokenizer '{}' after ByteLevel", type));
  if (type == "Split") return add_split(node);
  if (type == "ByteLevel") return add_byte_level(node);
  return refuse(fmt::format("pre_tokenizer '{}' is not supported", type));
}

Status PreTokenizer::add_split(const Json& node) {
  const auto behavior = node.find("behavior");
  if (behavior == node.end() || *behavior != "Isolated")
    return refuse(
        fmt::format("pre_tokenizer Split with behavior {}", behavior == node.end() ? "(none)" : behavior->dump()));
  // `invert` swaps matches and gaps, which are pieces alike when isolated.
  const auto pattern = node.find("pattern");
  if (pattern == node.end() || !pattern->is_object()) return refuse("pre_tokenizer Split without a pattern");
  const auto regex = pattern->find("Regex");
  const auto literal = pattern->find("String");
  if (regex != pattern->end() && regex->is_string()) {
    PLUMB_TRY(Regex compiled, Regex::compile(regex->get_ref<const std::string&>()));
    patterns_.push_back(std::move(compiled));
    return {};
  }
  if (literal != pattern->end() && literal->is_string() && !literal->get_ref<const std::string&>().empty()) {
    PLUMB_TRY(Regex compiled, Regex::compile_literal(literal->get_ref<const std::string&>()));
    patterns_.push_back(std::move(compiled));
    return {};
  }
  return refuse("pre_tokenizer Split: pattern is neither {\"Regex\": text} nor {\"String\": text}");
}

Status PreTokenizer::add_byte_level(const Json& node) {
  byte_level_ = true;
  prefix_space_ = flag(node, "add_prefix_space", true);
  if (!flag(node, "use_regex", true)) return {};
  PLUMB_TRY(Regex compiled, Regex::compile(kByteLevelPattern));
  byte_pattern_.push_back(std::move(compiled));
  return {};
}

Result<std::vector<std::string>> PreTokenizer::split(std::string_view text) const {
  Pieces pieces{text};
  for (const Regex& pattern : patterns_) {
    PLUMB_TRY(pieces, isolate(pattern, pieces));
  }
  std::vector<std::string> out;
  out.reserve(pieces.size());
  if (!prefix_space_) {
    for (const Regex& pattern : byte_pattern_) {
      PLUMB_TRY(pieces, isolate(pattern, pieces));
    }
    for (const std::string_view piece : pieces) out.emplace_back(piece);
    return out;
  }
  for (const std::string_view piece : pieces) {
    const std::string spaced = (piece.starts_with(' ') ? "" : " ") + std::string(piece);
    Pieces parts{spaced};
    for (const Regex& pattern : byte_pattern_) {
      PLUMB_TRY(parts, isolate(pattern, parts));
    }
    for (const std::string_view part : parts) out.emplace_back(part);
  }
  return out;
}

}  // namespace plumb

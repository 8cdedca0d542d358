// Cuts text into the pieces within which byte pairs are merged: the `pre_tokenizer` of tokenizer.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/regex.h"

namespace plumb {

class PreTokenizer {
 public:
  // Split (behaviour Isolated) and ByteLevel, alone or in a Sequence that ends in its only ByteLevel.
  static Result<PreTokenizer> parse(const nlohmann::json& node);

  // Pieces in order; they cover the text, with blanks added where ByteLevel's `add_prefix_space` says so.
  Result<std::vector<std::string>> split(std::string_view valid_utf8) const;

 private:
  Status add(const nlohmann::json& node);
  Status add_split(const nlohmann::json& node);
  Status add_byte_level(const nlohmann::json& node);

  std::vector<Regex> patterns_{};      // each one cuts every piece of the one before
  bool prefix_space_ = false;          // ByteLevel's: before its own pattern, after the others
  std::vector<Regex> byte_pattern_{};  // ByteLevel's own, when `use_regex` is on: none or one
  bool byte_level_ = false;
};

}  // namespace plumb

// The `normalizer` of tokenizer.json: none, a Unicode normalisation form, or a sequence of them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/unicode.h"

namespace plumb {

class Normalizer {
 public:
  static Result<Normalizer> parse(const nlohmann::json& node);
  bool empty() const { return forms_.empty(); }
  std::string apply(std::string_view valid_utf8) const;

 private:
  std::vector<utf8::Form> forms_{};
};

}  // namespace plumb

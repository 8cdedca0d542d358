// Flags that people bring from SGLang's and vLLM's command lines. One that names something we have becomes ours; one
// that asks for what is always so is taken; every other is refused with the reason and our own name for the thing. None
// is ignored.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace plumb {

struct TranslatedFlags {
  std::vector<std::string> arguments{};          // ours alone
  std::map<std::string, std::string> origins{};  // "max_context" -> "--max-model-len": who asked, by name in the plan
  struct Fulfilled {
    std::string name{}, value{}, because{};
  };
  std::vector<Fulfilled> fulfilled{};  // asked for, and so without any doing
};

// Error (Unsupported): every flag that cannot be honoured, and the command line that is left without them.
Result<TranslatedFlags> translate_foreign_flags(const std::vector<std::string>& arguments);

}  // namespace plumb

// Where a model is: a folder, or a name in a local Hugging Face cache.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace plumb {

struct ModelSource {
  std::filesystem::path folder{};
  std::string name{};      // as clients see it: the cache name, or the folder's own name
  std::string revision{};  // commit of the cache snapshot; empty for a folder
};

// `argument`: a folder, `org/name`, or `org/name@revision` (branch, tag or commit). `hf_home` holds `hub/`; may be
// empty. Nothing is downloaded.
Result<ModelSource> resolve_model(std::string_view argument, const std::filesystem::path& hf_home);

}  // namespace plumb

// Small text files of a model's folder.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace plumb {

// The whole file. Refuses more than 1 GiB: vocabularies take tens of megabytes.
Result<std::string> read_text_file(const std::filesystem::path& path);

}  // namespace plumb

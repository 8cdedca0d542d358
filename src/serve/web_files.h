// The files of web/, written into the program when it is built.
#pragma once

#include <span>
#include <string_view>

namespace plumb {

struct EmbeddedFile {
  std::string_view name{}, bytes{};
};
std::span<const EmbeddedFile> embedded_files();

}  // namespace plumb

#include "support/source_dir.h"

namespace plumb::testing {

const std::string& source_dir() {
  static const std::string path = PLUMB_SOURCE_DIR;
  return path;
}

}  // namespace plumb::testing

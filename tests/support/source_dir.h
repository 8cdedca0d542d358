#pragma once

#include <string>

namespace plumb::testing {

// The source tree, where data that tests need lies. In a file of its own, so that the other objects are the same
// wherever the tree is, and a compiler cache finds them.
const std::string& source_dir();

}  // namespace plumb::testing

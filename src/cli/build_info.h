// Facts of this build: part of --version, of the system fingerprint and of every capture.
#pragma once

#include <string>

namespace plumb {

std::string build_id();      // "0.1.0+1a2b3c4d5e6f", with "-dirty" when the tree had changes
std::string version_text();  // several lines: build, compiler, flags, what this machine offers

}  // namespace plumb

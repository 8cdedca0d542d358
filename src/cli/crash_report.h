// A file about a crash: what died, where, what ran, the log's last lines. No text of prompts or answers is in it.
#pragma once

#include <string>

#include "base/result.h"

namespace plumb {

// Installs handlers for the signals of crashes; `facts` is written into the report as it is. The folder must exist or
// be creatable; at most 20 reports are kept in it. Once, after which threads may be started or not.
Status prepare_crash_report(const std::string& folder, std::string facts);
// The same file without a crash. Does nothing unless prepared.
void write_crash_report(const char* what);

}  // namespace plumb

// Verification as commands ask for it: flags, the golden file and the operator's own prompts in, a receipt out.
#pragma once

#include <string>

#include "cli/service.h"
#include "engine/self_check.h"
#include "guard/receipt.h"

namespace plumb {

struct VerifyFlags {
  std::string level = "quick";  // quick | full | off
  std::string file{};           // prompts with expected answers; empty: verify.jsonl beside the model, if it is there
  std::string out{};            // where the receipt goes as well
};
void add_verify_options(CLI::App& command, VerifyFlags& flags);

// Runs the checks on what the service is about to serve with. An Error: a file could not be read or written; failed
// checks are in the receipt.
Result<Receipt> verify_service(const Service& service, const Forward& forward, const EngineOptions& options,
                               const VerifyFlags& flags);

}  // namespace plumb

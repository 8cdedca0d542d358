#include "cli/fault_options.h"

#include <CLI/CLI.hpp>

#ifdef PLUMB_FAULTS
#include "guard/fault.h"
#endif

namespace plumb {

#ifdef PLUMB_FAULTS
void add_fault_options(CLI::App& command, ModelOptions& options) {
  command.add_option("--fault", options.faults, "Plant a fault: KIND@PLACE[,key=value ...], repeatable; for tests");
}

std::function<Status(LoadedModel&)> fault_planter(const ModelOptions& options, const Registry& registry) {
  if (options.faults.empty()) return {};
  return [&options, &registry](LoadedModel& model) -> Status {
    std::vector<Fault> faults;
    for (const std::string& text : options.faults) {
      PLUMB_TRY(Fault fault, parse_fault(text));
      faults.push_back(std::move(fault));
    }
    PLUMB_TRY(const auto log, plant_faults(faults, registry, model));
    return Ok{};
  };
}
#else
void add_fault_options(CLI::App&, ModelOptions&) {}
std::function<Status(LoadedModel&)> fault_planter(const ModelOptions&, const Registry&) { return {}; }
#endif

}  // namespace plumb

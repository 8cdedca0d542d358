// How the faults of the table are run: models, engines and requests.
#pragma once

#include <string>

#include "engine/engine_options.h"
#include "matrix/table.h"
#include "model/runner.h"

namespace plumb::matrix {

inline constexpr int kThreads = 1;  // ops this small wait longer for a second thread than they run
inline constexpr int kSequences = 8;
inline constexpr int kRows = 64;  // of one pass, so that the prompt takes two and the second can show what the first
                                  // has left
// While serving: one request reaches positions that its neighbours never see, and there the fault strikes.
inline constexpr int kVictimPrompt = 70, kVictimAnswer = 32, kStruckFrom = 40;
inline constexpr int kNeighbourPrompt = 12, kNeighbourAnswer = 20;

std::string folder_of(const Setting& setting);  // empty: not there
ModelPlanOptions plan_options(const Setting& setting);
EngineOptions engine_options(const Registry& registry, int chunk);
GenerateRequest request_of(const char* id, int prompt, int answer, int seed);
// A line on the terminal.
void tell(const Outcome& outcome);

}  // namespace plumb::matrix

// Which rank this process is, as launchers tell it: torchrun-style variables, Open MPI's, Slurm's, and those of a
// Kubernetes LeaderWorkerSet or indexed Job.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"

namespace plumb {

enum class Launcher : uint8_t { None, Torchrun, OpenMpi, Slurm, Kubernetes };

struct RankEnv {
  Launcher launcher = Launcher::None;
  int rank = 0, size = 1;
  std::string source{};   // the variables it was read from, for messages
  std::string address{};  // of rank 0; unused with MPI
  int port = 0;
};

using GetVariable = std::function<const char*(const char* name)>;
// Launchers that started one process count as none. Errors (Usage): variables that contradict each other, or lack a
// part.
Result<RankEnv> read_rank_env(const GetVariable& get);
Result<RankEnv> read_rank_env();  // of this process's environment

// "node[03-07,9]" -> "node03": the first of Slurm's list.
std::string first_host(const std::string& list);

}  // namespace plumb

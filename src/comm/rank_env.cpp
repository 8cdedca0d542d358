#include "comm/rank_env.h"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace plumb {
namespace {

constexpr int kDefaultPort = 29500;  // torchrun's

// The names that one launcher uses. Size before rank: a size of 1, or none, is no launcher.
struct Names {
  Launcher launcher;
  const char *size, *rank, *address;
};
constexpr Names kNames[] = {
    {Launcher::OpenMpi, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", nullptr},
    {Launcher::Kubernetes, "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"},
    {Launcher::Torchrun, "WORLD_SIZE", "RANK", "MASTER_ADDR"},
    {Launcher::Slurm, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST"},
};

class Reader {
 public:
  explicit Reader(const GetVariable& get) : get_(get) {}
  // nullopt: not this launcher.
  Result<RankEnv> read(const Names& names);

 private:
  std::string text(const char* name) const {
    const char* value = name == nullptr ? nullptr : get_(name);
    return value == nullptr ? "" : value;
  }
  Result<int> number(const char* name, int least, int most) const;
  const GetVariable& get_;
};

Result<int> Reader::number(const char* name, int least, int most) const {
  const std::string value = text(name);
  int parsed = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (error != std::errc() || end != value.data() + value.size() || parsed < least || parsed > most)
    return Error{Code::Usage,
                 std::string(name) + "=" + value + " is not a number from " + std::to_string(least) + " to " +
                     std::to_string(most),
                 "",
                 {}};
  return parsed;
}

Result<RankEnv> Reader::read(const Names& names) {
  RankEnv env;
  if (text(names.size).empty()) return env;
  PLUMB_TRY(env.size, number(names.size, 1, 1024));
  if (env.size == 1) return env;
  // An indexed Job numbers its pods under a name of its own.
  const char* rank =
      text(names.rank).empty() && names.launcher == Launcher::Torchrun ? "JOB_COMPLETION_INDEX" : names.rank;
  if (text(rank).empty())
    return Error{Code::Usage,
                 std::string(names.size) + " is " + text(names.size) + ", and " + names.rank + " is not set",
                 "a process must know which of the ranks it is",
                 {std::string(names.rank) + "=0 to " + std::to_string(env.size - 1)}};
  env.launcher = names.launcher;
  PLUMB_TRY(env.rank, number(rank, 0, env.size - 1));
  env.source = std::string(rank) + " and " + names.size;
  if (env.launcher == Launcher::OpenMpi) return env;
  env.address = text("MASTER_ADDR");
  if (env.address.empty())
    env.address = names.launcher == Launcher::Slurm ? first_host(text(names.address)) : text(names.address);
  if (env.address.empty())
    return Error{Code::Usage,
                 env.source + " are set, and MASTER_ADDR is not",
                 "the ranks meet at rank 0, whose machine it names",
                 {"MASTER_ADDR=HOST, and MASTER_PORT if " + std::to_string(kDefaultPort) + " is taken"}};
  env.port = kDefaultPort;
  if (!text("MASTER_PORT").empty()) {
    PLUMB_TRY(env.port, number("MASTER_PORT", 1, 65535));
  }
  return env;
}

}  // namespace

std::string first_host(const std::string& list) {
  const size_t end = list.find_first_of("[,");
  if (end == std::string::npos || list[end] == ',') return list.substr(0, end);
  const size_t stop = list.find_first_of("-,]", end);
  return list.substr(0, end) + list.substr(end + 1, stop == std::string::npos ? stop : stop - end - 1);
}

Result<RankEnv> read_rank_env(const GetVariable& get) {
  RankEnv found;
  for (const Names& names : kNames) {
    // mpirun inside an allocation starts its daemons as Slurm's tasks: Slurm's numbers count those.
    if (names.launcher == Launcher::Slurm && found.launcher == Launcher::OpenMpi) continue;
    PLUMB_TRY(const RankEnv env, Reader(get).read(names));
    if (env.launcher == Launcher::None) continue;
    if (found.launcher != Launcher::None && (found.rank != env.rank || found.size != env.size))
      return Error{Code::Usage,
                   "this process is rank " + std::to_string(found.rank) + " of " + std::to_string(found.size) + " by " +
                       found.source + ", and rank " + std::to_string(env.rank) + " of " + std::to_string(env.size) +
                       " by " + env.source,
                   "two launchers contradict each other",
                   {"only one of them"}};
    if (found.launcher == Launcher::None) found = env;
  }
  return found;
}

Result<RankEnv> read_rank_env() {
  return read_rank_env([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

}  // namespace plumb

#include "cli/ranks.h"

#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>

#include "base/thread_pool.h"
#include "checkpoint/model_source.h"
#include "cli/build_info.h"
#include "cli/rank_launcher.h"
#include "comm/collectives.h"
#include "comm/mpi_communicator.h"
#include "comm/rank_env.h"
#include "comm/rendezvous.h"
#include "device/cuda_device.h"

namespace plumb {
namespace {

using std::chrono::milliseconds;

// Loading from a disk that another rank has in its cache takes very different times.
constexpr milliseconds kLoadingDeadline{600'000};

bool gave_tp(const ModelOptions& options) {
  return std::any_of(options.options.begin(), options.options.end(),
                     [](const CLI::Option* option) { return option->check_lname("tp") && option->count() > 0; });
}

Status check_size(int launched, const std::string& source, ModelOptions& options) {
  ModelPlanOptions& plan = options.plan;
  if (!gave_tp(options)) {
    plan.tp = launched;
    plan.sources["tp"] = source;
    plan.asked["tp"] = std::to_string(launched);
  }
  if (plan.tp == launched) return Ok{};
  return Error{Code::Usage,
               "--tp " + std::to_string(plan.tp) + ", and " + std::to_string(launched) + " processes were started (" +
                   source + ")",
               "each of them is a rank",
               {"--tp " + std::to_string(launched), std::to_string(plan.tp) + " processes",
                "no launcher: plumb starts the ranks of one machine itself"}};
}

Result<std::unique_ptr<Communicator>> join_launched(const RankEnv& env, const RankFlags& flags) {
  if (env.launcher == Launcher::OpenMpi) return open_mpi();
  return meet(env, milliseconds(static_cast<int64_t>(flags.wait_s * 1000)));
}

std::string cpu_set_text() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::string text;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return text;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) text += CPU_ISSET(cpu, &allowed) != 0 ? '1' : '0';
  return text;
}

// Found before there are processes that would all say the same.
Status check_division(const ModelOptions& options, const CliContext& context) {
  PLUMB_TRY(const ModelSource source, resolve_model(options.model, context.hf_home));
  PLUMB_TRY(const OpenedModel model, open_model(source.folder));
  return check_split(model.config, model.map, ranks_of(options.plan));
}

// Each rank of a machine has a GPU of its own, or says that it may not be so.
Status choose_gpu(RankGroup& group, int rank_here, bool share) {
  PLUMB_TRY(const CudaPlace place, cuda_place(rank_here));
  PLUMB_TRY(const std::vector<std::string> all, all_gather_text(*group.comm, place.id));
  PLUMB_TRY(const std::vector<std::string> troubles,
            all_gather_text(*group.comm, cuda_unreachable(place.ordinal, all)));
  for (size_t rank = 0; rank < troubles.size() && group.unreachable.empty(); ++rank)
    if (!troubles[rank].empty()) group.unreachable = "rank " + std::to_string(rank) + ": " + troubles[rank];
  const int on_machine = group.ranks_here;
  group.cuda_device = place.ordinal;
  group.ranks_here = static_cast<int>(std::count(all.begin(), all.end(), place.id));
  if (group.ranks_here == 1 || share) return Ok{};
  return Error{Code::Unsupported,
               "--tp " + std::to_string(group.comm->size()) + " cannot be honoured with these GPUs",
               std::to_string(on_machine) + " ranks run on this machine, and " + std::to_string(group.ranks_here) +
                   " of them would share one GPU",
               {"as many ranks as GPUs", "--share-gpus, which is slow: for trying ranks out"}};
}

// Ranks on one machine share its memory; those with the same CPUs share these as well, others were given their own.
Status divide_machine(RankGroup& group, ModelOptions& options, bool share_gpus) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string here = host.data(), cpus = here + " " + cpu_set_text();
  PLUMB_TRY(const std::vector<std::string> hosts, all_gather_text(*group.comm, here));
  PLUMB_TRY(const std::vector<std::string> sets, all_gather_text(*group.comm, cpus));
  group.ranks_here = static_cast<int>(std::count(hosts.begin(), hosts.end(), here));
  if (options.plan.backend == "cuda") {
    const auto before = hosts.begin() + group.comm->rank();
    PLUMB_TRY_STATUS(choose_gpu(group, static_cast<int>(std::count(hosts.begin(), before, here)), share_gpus));
  }
  const auto sharing = static_cast<int>(std::count(sets.begin(), sets.end(), cpus));
  if (options.threads == 0) options.threads = std::max(1, physical_cores() / sharing);
  return Ok{};
}

}  // namespace

void add_rank_options(CLI::App& command, ModelOptions& options, RankFlags& flags) {
  options.options.push_back(command
                                .add_option("--rank-timeout-ms", flags.timeout_ms,
                                            "Milliseconds without an answer after which a rank counts as lost")
                                ->check(CLI::Range(100, 3'600'000)));
  options.options.push_back(
      command.add_option("--rank-wait", flags.wait_s, "Seconds that ranks wait for each other at the start")
          ->check(CLI::Range(0.1, 86'400.0)));
  options.options.push_back(command.add_flag("--share-gpus", flags.share_gpus,
                                             "Let ranks share a GPU where there are fewer GPUs than ranks"));
}

Result<RankGroup> join_ranks(ModelOptions& options, const RankFlags& flags, const CliContext& context) {
  RankGroup group{.timeout_ms = flags.timeout_ms};
  PLUMB_TRY(const RankEnv env, read_rank_env());
  const bool one_rank = env.launcher == Launcher::None && options.plan.tp == 1;
  if (flags.share_gpus && (one_rank || options.plan.backend != "cuda"))
    return Error{Code::Usage,
                 "--share-gpus has nothing to act on",
                 one_rank ? "there is one rank" : "ranks run on CPUs",
                 {"--tp 2 --backend cuda --share-gpus", "without it"}};
  if (env.launcher != Launcher::None) {
    PLUMB_TRY_STATUS(check_size(env.size, env.source, options));
    PLUMB_TRY(group.comm, join_launched(env, flags));
  } else if (options.plan.tp > 1) {
    PLUMB_TRY_STATUS(check_division(options, context));
    PLUMB_TRY(Launched launched, launch_ranks(options.plan.tp));
    group.ended = launched.ended;
    if (group.ended) return group;
    group.comm = std::make_unique<SocketCommunicator>(launched.rank, std::move(launched.links));
  } else {
    return group;
  }
  group.comm->set_deadline(kLoadingDeadline);
  PLUMB_TRY_STATUS(introduce(*group.comm));
  PLUMB_TRY_STATUS(divide_machine(group, options, flags.share_gpus));
  PLUMB_TRY_STATUS(agree(group, "build", build_id()));
  return group;
}

Status agree(RankGroup& group, const std::string& what, const std::string& mine) {
  if (group.comm == nullptr) return Ok{};
  PLUMB_TRY(const std::vector<std::string> all, all_gather_text(*group.comm, mine));
  for (int rank = 1; rank < group.comm->size(); ++rank) {
    if (all[static_cast<size_t>(rank)] == all[0]) continue;
    return Error{Code::Unsupported,
                 "the ranks do not have the same " + what,
                 group.comm->name_of(rank) + " has " + all[static_cast<size_t>(rank)] + ", " + group.comm->name_of(0) +
                     " has " + all[0],
                 {"the same program, model and flags on every rank"}};
  }
  return Ok{};
}

// A lost rank is told of once, by the first one that is left.
int end_follower(const RankGroup& group, const Error& error) {
  const bool leader_lost = error.what.find(group.comm->name_of(0)) != std::string::npos;
  if (error.code == Code::Peer && !(leader_lost && group.comm->rank() == 1)) return exit_code(error.code);
  return report(error);
}

}  // namespace plumb

// The ranks that share a model: started by a launcher (mpirun, Slurm, torchrun-style variables, Kubernetes), or by this
// process on this machine.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/model_options.h"
#include "comm/communicator.h"

namespace plumb {

struct RankFlags {
  bool share_gpus = false;  // several ranks may run on one GPU
  double wait_s = 60;       // for ranks that another launcher starts
  int timeout_ms = 3'500;   // of an exchange, and between two messages, once the model serves
};
void add_rank_options(CLI::App& command, ModelOptions& options, RankFlags& flags);

// This process among the ranks. One rank: all of it is empty.
struct RankGroup {
  std::unique_ptr<Communicator> comm{};
  int ranks_here = 1;  // that share the memory of this machine, or of this rank's GPU
  int cuda_device = 0;
  std::string unreachable{};   // why the GPUs of the ranks cannot read each other's memory; empty: they can
  int timeout_ms = 0;          // as in RankFlags
  std::optional<int> ended{};  // this process started the ranks and has seen them end: its exit code
  bool follows() const { return comm != nullptr && comm->rank() > 0; }
};

// Sets options.plan.tp to the number of ranks where a launcher says it and --tp does not; divides --threads 0 among the
// ranks that share this machine's cores. Call before the process has threads.
Result<RankGroup> join_ranks(ModelOptions& options, const RankFlags& flags, const CliContext& context);

// What must be alike on all ranks before one computes anything: `what` names it, `mine` is this rank's.
Status agree(RankGroup& group, const std::string& what, const std::string& mine);

// The exit code of a rank that followed until something went wrong; reports it if that is this rank's to do.
int end_follower(const RankGroup& group, const Error& error);

}  // namespace plumb

// Stands in for mpi_communicator.cpp in builds without MPI.
#ifndef PLUMB_HAVE_MPI
#include "comm/mpi_communicator.h"

namespace plumb {

Status mpi_available() {
  return Error{Code::Unsupported,
               "mpirun started this process, and this build has no MPI",
               "MPI was not found when it was built",
               {"plumb serve MODEL --tp N, which starts its ranks itself", "RANK, WORLD_SIZE and MASTER_ADDR",
                "a build where libopenmpi-dev is installed"}};
}

Result<std::unique_ptr<Communicator>> open_mpi() { return mpi_available().error(); }

}  // namespace plumb
#endif

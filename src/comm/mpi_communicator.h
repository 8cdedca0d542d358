// Ranks that an MPI launcher started, joined by its own transport.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace plumb {

// Whether this build can: with the reason if not.
Status mpi_available();
// The ranks of MPI_COMM_WORLD. Once a process, before other threads use MPI.
Result<std::unique_ptr<Communicator>> open_mpi();

}  // namespace plumb

// One rank of tests/comm/mpi_test.py: collectives over MPI against sums made here; with an argument, rank 1 hangs.
#include <bit>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "comm/collectives.h"
#include "comm/mpi_communicator.h"

namespace {

float value_of(int rank, size_t i) { return 1.0f / static_cast<float>(i + 1 + static_cast<size_t>(rank) * 977); }

bool sums_are_right(plumb::Communicator& comm, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = value_of(comm.rank(), i);
  if (!plumb::all_reduce(comm, values)) return false;
  for (size_t i = 0; i < count; ++i) {
    float want = value_of(0, i);
    for (int r = 1; r < comm.size(); ++r) want += value_of(r, i);
    if (std::bit_cast<uint32_t>(values[i]) != std::bit_cast<uint32_t>(want)) return false;
  }
  return true;
}

bool run(plumb::Communicator& comm) {
  for (const size_t count : {size_t{1}, size_t{999}, size_t{100'003}})
    for (int turn = 0; turn < 5; ++turn)
      if (!sums_are_right(comm, count)) return false;
  const auto texts = plumb::all_gather_text(comm, "I am " + std::to_string(comm.rank()));
  if (!texts) return false;
  for (int r = 0; r < comm.size(); ++r)
    if ((*texts)[static_cast<size_t>(r)] != "I am " + std::to_string(r)) return false;
  int told = comm.rank() == 0 ? 42 : 0;
  return plumb::broadcast(comm, 0, std::as_writable_bytes(std::span(&told, 1))) && told == 42 &&
         static_cast<bool>(plumb::barrier(comm)) && static_cast<bool>(plumb::introduce(comm));
}

}  // namespace

int main(int argc, char**) {
  auto comm = plumb::open_mpi();
  if (!comm) {
    std::fprintf(stderr, "%s\n", comm.error().to_string().c_str());
    return 1;
  }
  if (argc > 1) {
    (*comm)->set_deadline(std::chrono::milliseconds(500));
    if ((*comm)->rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(30));
    float value = 1;
    const plumb::Status status = plumb::all_reduce(**comm, std::span(&value, 1));
    std::printf("rank %d: %s\n", (*comm)->rank(), status ? "no failure" : status.error().to_string().c_str());
    std::fflush(stdout);
    std::_Exit(5);
  }
  const bool well = run(**comm);
  std::printf("rank %d of %d: %s\n", (*comm)->rank(), (*comm)->size(), well ? "well" : "WRONG");
  return well ? 0 : 1;
}

// Collectives over a Communicator. Every rank calls the same ones in the same order with the same sizes. Sums are taken
// in order of rank, element by element, so every rank gets the same bits, whichever way the data took.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace plumb {

// values = the sum of all ranks' values, in f32.
Status all_reduce(Communicator& comm, std::span<float> values);
// The same of bf16 codes: summed in f32, rounded once.
Status all_reduce_bf16(Communicator& comm, std::span<uint16_t> values);
// all[r * mine.size() ...] = rank r's `mine`.
Status all_gather(Communicator& comm, std::span<const std::byte> mine, std::span<std::byte> all);
// The same on `root` alone; elsewhere `all` is not touched.
Status gather(Communicator& comm, int root, std::span<const std::byte> mine, std::span<std::byte> all);
// Rank r has columns r * share ... of every row of n; the last rank's may be fewer. On rank 0 `values` is [rows, n]
// with rows `stride` apart and its own columns in place, and the others' are filled in; elsewhere it is what the rank
// has, without gaps.
Status gather_columns(Communicator& comm, std::span<float> values, int64_t rows, int64_t n, int64_t stride,
                      int64_t share);
// data = root's data.
Status broadcast(Communicator& comm, int root, std::span<std::byte> data);
// Returns when every rank has come here.
Status barrier(Communicator& comm);

// Every rank's text, of any length.
Result<std::vector<std::string>> all_gather_text(Communicator& comm, std::string_view mine);
// Ok if `mine` is on every rank; else the rank's own error, or that of the first one that has some, with its name.
Status share_failure(Communicator& comm, const Status& mine);
// Gives the ranks their names: host and process.
Status introduce(Communicator& comm);

}  // namespace plumb

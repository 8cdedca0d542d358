// What a launch writes, row by row, wherever it lies: the part of planted faults that edits results.
#pragma once

#include <cstddef>
#include <vector>

#include "guard/op_args.h"
#include "ops/executor.h"

namespace plumb {

// Bytes in the executor's memory.
class DeviceBytes {
 public:
  explicit DeviceBytes(Executor& executor) : executor_(executor) {}
  void get(void* to, const void* from, size_t bytes);
  void put(void* to, const void* from, size_t bytes);
  // Scratch there, holding `bytes`; lives as long as this object.
  std::byte* copy(const void* from, size_t bytes);

 private:
  Executor& executor_;
  std::vector<std::shared_ptr<std::byte>> scratch_{};
};

struct Piece {
  std::byte* data = nullptr;
  size_t bytes = 0;
  DType dtype = DType::F32;  // of its elements; U8 for rows of the cache with several types in them
  bool input = false;        // changed in place: what was there is an input
};

// The pieces of memory that a launch writes for each of its rows. Rows of the cache are written by KvWrite and
// IndexKeyWrite; `pass` is the pass they belong to, in host memory. Padding rows have no pieces there.
std::vector<std::vector<Piece>> written_rows(AnyArgs& args, const OpCall& call, const Paging& pass);

using RowBytes = std::vector<std::vector<std::byte>>;  // of each piece of one row
RowBytes read_row(const std::vector<Piece>& row, DeviceBytes& memory);
void write_row(const std::vector<Piece>& row, const RowBytes& bytes, DeviceBytes& memory);

}  // namespace plumb

// One generated input of an op in fenced memory, what must come out of it, and how far off a kernel may be.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "buffers.h"
#include "generate.h"
#include "ops/kernel.h"

namespace plumb::testing {

using Problems = std::vector<std::string>;

class OpCase {
 public:
  virtual ~OpCase() = default;
  virtual std::string describe() const = 0;
  // The question the plan would ask the registry about this case.
  virtual Call call() const = 0;
  int64_t rows() const { return rows_; }

  // Restores what the op changes in place and fills its outputs with `poison`.
  virtual void reset(uint8_t poison) = 0;
  // Rows [first, first + count) as a step of their own.
  virtual void launch(const Kernel& kernel, Stream& stream, int64_t first, int64_t count) = 0;
  // Everything the op wrote, padding rows left out.
  virtual std::vector<std::byte> outputs() const = 0;
  // Compares the outputs with the reference's within the contract's bound.
  virtual void check(const Contract& contract, Problems& problems) = 0;
  // Runs the reference and keeps what it gives.
  virtual void expect(Stream& stream) = 0;
  virtual bool whole() const = 0;
  virtual bool prepare(const Registry&, Layout) { return true; }

 protected:
  int64_t rows_ = 0;
};

using Cases = std::vector<std::unique_ptr<OpCase>>;
// Cases at every edge of what the kernel's contract accepts. Empty for an op without cases, which fails the test.
Cases make_cases(const Contract& contract);

void add_linear_cases(const Contract& contract, Cases& out);  // Linear, Mlp
void add_expert_cases(const Contract& contract, Cases& out);  // Router, Moe
void add_row_cases(const Contract& contract, Cases& out);     // Embed, norms, Rope, GatherRows
void add_cache_cases(const Contract& contract, Cases& out);   // KvWrite, IndexQuery, IndexKeyWrite
void add_attend_cases(const Contract& contract, Cases& out);  // IndexerLogits, TopK, MlaAttend
void add_sample_cases(const Contract& contract, Cases& out);
void add_collective_cases(const Contract& contract, Cases& out);  // AllReduce, GatherColumns

const Kernel& reference_of(Op op);
// Scratch of exactly what the contract asks for, fenced.
struct Scratch {
  Scratch(const Contract& contract, const Call& call);
  Stream stream(ThreadPool* pool);
  Buffer memory{};
};

// Values a multiple of the contract's limits: the smallest, an odd one and a larger one.
std::vector<int64_t> edge_sizes(std::vector<int64_t> wanted, int64_t multiple, int64_t max);
std::vector<int64_t> edge_rows(const Contract& contract, std::vector<int64_t> wanted);
std::vector<Numerics> edge_numerics(const Contract& contract);
// `data` as bytes at the end of `out`.
void append(std::vector<std::byte>& out, const void* data, size_t bytes);

// A paged step: sequences of some length, their pages in shuffled order, rows at their ends, one padding row.
struct Step {
  Step(std::vector<int32_t> lengths, int rows_each, bool padding, Rng& rng);
  Paging paging(int64_t first, int64_t count) const;
  int64_t rows() const { return static_cast<int64_t>(positions.size()); }
  int pages = 0;
  int page_tokens = 64;
  int stride = 0;
  CaseVector<int32_t> positions{};
  CaseVector<int32_t> sequence{};
  CaseVector<int32_t> table{};
};

}  // namespace plumb::testing

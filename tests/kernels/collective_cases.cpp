// Cases of ops among ranks: the case's own rank on the test's thread, the others on threads of their own.
#include <algorithm>
#include <cmath>
#include <thread>

#include "kernels/collective/collective_kernels.h"
#include "matrix_case.h"
#include "support/ranks.h"

namespace plumb::testing {
namespace {

constexpr int kRanks = 3;

// Every rank runs the kernel under test on its own rows; where that is one of a GPU, whose one stream cannot wait for
// itself, the others run the host's.
class CollectiveCase : public MatrixCase {
 public:
  explicit CollectiveCase(int rank) : rank_(rank), comms_(joined_ranks(kRanks)) {
    constexpr size_t kStaging = size_t{1} << 20;
    auto* const staging = static_cast<std::byte*>(allocate_case_memory(kStaging));
    comm(rank)->set_staging({staging, [](std::byte* memory) { free_case_memory(memory, kStaging); }}, kStaging);
  }

  void launch(const Kernel& kernel, Stream& stream, int64_t first, int64_t count) override {
    const std::vector<Kernel> host = collective_kernels();
    const Kernel& theirs =
        kernel.contract.arch == Isa::CudaPortable
            ? *std::ranges::find(host, kernel.contract.op, [](const Kernel& k) { return k.contract.op; })
            : kernel;
    std::vector<std::thread> others;
    for (int r = 0; r < kRanks; ++r) {
      if (r == rank_) continue;
      others.emplace_back([&, r] {
        Scratch scratch(theirs.contract, call());
        Stream own = scratch.stream(nullptr);
        const AnyArgs args = others_arguments(r, first, count);
        theirs.launch(raw(args), own);
      });
    }
    const AnyArgs args = arguments(Side::Have, first, count);
    kernel.launch(raw(args), stream);
    for (std::thread& other : others) other.join();
  }

 protected:
  virtual AnyArgs others_arguments(int rank, int64_t first, int64_t count) = 0;
  Communicator* comm(int rank) { return comms_[static_cast<size_t>(rank)].get(); }
  const int rank_;

 private:
  std::vector<std::unique_ptr<Communicator>> comms_;
};

class AllReduceCase : public CollectiveCase {
 public:
  AllReduceCase(int64_t rows, int64_t n, const Numerics& numerics, Rng& rng)
      : CollectiveCase(1), n_(n), numerics_(numerics) {
    rows_ = rows;
    add_in_out(n, Values::Normal, rng);
    for (int r = 0; r < kRanks; ++r) {
      given_.push_back(std::make_unique<Matrix>(rows, n));
      changed_.push_back(std::make_unique<Matrix>(rows, n));
      given_.back()->fill(Values::Normal, rng);
    }
    given_[1]->copy_from(output(0));
  }
  std::string describe() const override {
    return "all_reduce rows " + std::to_string(rows_) + " n " + std::to_string(n_);
  }
  Call call() const override {
    return {.op = Op::AllReduce, .m_lo = rows_, .m_hi = rows_, .k = n_, .numerics = numerics_};
  }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return AllReduceArgs{.comm = comm(rank_), .x = output(0, side).tensor(first, count), .numerics = numerics_};
  }
  AnyArgs others_arguments(int rank, int64_t first, int64_t count) override {
    const auto r = static_cast<size_t>(rank);
    for (int64_t t = first; t < first + count; ++t) std::copy_n(given_[r]->row(t), n_, changed_[r]->row(t));
    return AllReduceArgs{.comm = comm(rank), .x = changed_[r]->tensor(first, count), .numerics = numerics_};
  }
  // Within the contract's bound of the sum, and the same bits on every rank.
  void check(const Contract& contract, Problems& problems) override {
    const double round_off = contract.error_bound.c * kRanks * unit_roundoff(contract.error_bound.unit);
    for (int64_t t = 0; t < rows_; ++t) {
      for (int64_t i = 0; i < n_; ++i) {
        double sum = 0, magnitude = 0;
        for (const auto& one : given_) {
          sum += static_cast<double>(one->row(t)[i]);
          magnitude += std::fabs(static_cast<double>(one->row(t)[i]));
        }
        const double bound = round_off * magnitude + (numerics_.round_bf16 ? 0x1p-8 * std::fabs(sum) * 1.01 : 0);
        const float have = output(0).row(t)[i];
        if (!(std::fabs(static_cast<double>(have) - sum) <= bound))
          problems.push_back("x[" + std::to_string(t) + ", " + std::to_string(i) + "] is " + std::to_string(have) +
                             " in place of " + std::to_string(sum));
        for (const size_t other : {size_t{0}, size_t{2}})
          if (changed_[other]->row(t)[i] != have)
            problems.push_back("rank " + std::to_string(other) + " has other bits");
      }
    }
  }

 private:
  int64_t n_;
  Numerics numerics_;
  std::vector<std::unique_ptr<Matrix>> given_{}, changed_{};
};

class GatherColumnsCase : public CollectiveCase {
 public:
  GatherColumnsCase(int64_t rows, int64_t share, int64_t last, Rng& rng)
      : CollectiveCase(0), share_(share), n_(share * (kRanks - 1) + last) {
    rows_ = rows;
    add_input(share, Values::Normal, rng);
    add_output(n_);
    for (int r = 0; r < kRanks; ++r) {
      given_.push_back(std::make_unique<Matrix>(rows, r + 1 == kRanks ? last : share));
      given_.back()->fill(Values::Normal, rng);
    }
    given_[0]->copy_from(in(0));
  }
  std::string describe() const override {
    return "gather_columns rows " + std::to_string(rows_) + " n " + std::to_string(n_);
  }
  Call call() const override { return {.op = Op::GatherColumns, .m_lo = rows_, .m_hi = rows_, .k = share_}; }
  AnyArgs arguments(Side side, int64_t first, int64_t count) override {
    return GatherColumnsArgs{
        .comm = comm(0), .x = in(0).tensor(first, count), .share = share_, .y = output(0, side).tensor(first, count)};
  }
  AnyArgs others_arguments(int rank, int64_t first, int64_t count) override {
    const auto r = static_cast<size_t>(rank);
    Tensor y(nullptr, DType::F32, {count, n_});
    return GatherColumnsArgs{.comm = comm(rank), .x = given_[r]->tensor(first, count), .share = share_, .y = y};
  }
  void check(const Contract&, Problems& problems) override {
    for (int64_t t = 0; t < rows_; ++t)
      for (int64_t i = 0; i < n_; ++i)
        if (output(0).row(t)[i] != given_[static_cast<size_t>(i / share_)]->row(t)[i % share_])
          problems.push_back("y[" + std::to_string(t) + ", " + std::to_string(i) + "] is not the rank's");
  }

 private:
  int64_t share_, n_;
  std::vector<std::unique_ptr<Matrix>> given_{};
};

}  // namespace

void add_collective_cases(const Contract& contract, Cases& out) {
  Rng rng(11);
  if (contract.op == Op::AllReduce)
    for (const int64_t rows : edge_rows(contract, {1, 3, 20}))
      for (const int64_t n : {1, 37, 1024})
        for (const Numerics& numerics : edge_numerics(contract))
          out.push_back(std::make_unique<AllReduceCase>(rows, n, numerics, rng));
  if (contract.op == Op::GatherColumns)
    for (const int64_t rows : edge_rows(contract, {1, 5}))
      for (const int64_t last : {1, 40, 64}) out.push_back(std::make_unique<GatherColumnsCase>(rows, 64, last, rng));
}

}  // namespace plumb::testing

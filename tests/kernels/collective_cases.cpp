// Cases of ops among ranks: the case's own rank on the test's thread, the others on threads of their own.
#include <algorithm>
#include <cmath>
#include <thread>

#include "kernels/collective/collective_kernels.h"
#include "matrix_case.h"
#include "support/ranks.h"

namespace plumb::testing {
namespace {

constexpr int kManyRanks = 3;

// Every rank runs the kernel under test on its own rows: on threads of their own, or on streams where kernels wait for
// each other. By way of the host a GPU's stream cannot wait for itself: there the others run the host's kernel.
class CollectiveCase : public MatrixCase {
 public:
  CollectiveCase(int rank, int ranks) : rank_(rank), ranks_(ranks), comms_(joined_ranks(ranks, 10'000)) {
    constexpr size_t kStaging = size_t{1} << 20;
    auto* const staging = static_cast<std::byte*>(allocate_case_memory(kStaging));
    comm(rank)->set_staging({staging, [](std::byte* memory) { free_case_memory(memory, kStaging); }}, kStaging);
  }
  ~CollectiveCase() override {
    for (const auto& each : comms_) each->detach_links();
  }

  void launch(const Kernel& kernel, Stream& stream, int64_t first, int64_t count) override {
    if (kernel.connect != nullptr) return launch_on_streams(kernel, stream, first, count);
    const std::vector<Kernel> host = collective_kernels();
    const Kernel& theirs =
        kernel.contract.arch == Isa::CudaPortable
            ? *std::ranges::find(host, kernel.contract.op, [](const Kernel& k) { return k.contract.op; })
            : kernel;
    // All memory before the first launch: a device that waits for the others may hold up whoever asks its driver for
    // page-locked memory, and the blocks to be used again are one thread's.
    std::vector<Scratch> scratch;
    std::vector<AnyArgs> theirs_args;
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      scratch.emplace_back(theirs.contract, call());
      theirs_args.push_back(others_arguments(r, first, count));
    }
    std::vector<std::thread> others;
    for (size_t i = 0; i < scratch.size(); ++i) {
      others.emplace_back([&theirs, &args = theirs_args[i], own = scratch[i].stream(nullptr)]() mutable {
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
  void check_ranks(Problems& problems) {
    for (const auto& each : comms_) {
      each->look();
      if (each->failed()) problems.push_back(each->failure()->to_string());
    }
  }
  const int rank_, ranks_;

 private:
  // Memory and streams first: asking for some may wait for kernels that wait for those to come.
  void launch_on_streams(const Kernel& kernel, Stream& stream, int64_t first, int64_t count) {
    on_each_rank(comms_, [&kernel](Communicator& each) {
      const Status connected = kernel.connect(each);
      EXPECT_TRUE(connected) << connected.error().to_string();
    });
    std::vector<Scratch> scratch;
    std::vector<std::shared_ptr<void>> handles;
    std::vector<AnyArgs> args;
    for (int r = 0; r < ranks_; ++r) {
      scratch.emplace_back(kernel.contract, call());
      handles.push_back(new_case_stream());
      args.push_back(r == rank_ ? arguments(Side::Have, first, count) : others_arguments(r, first, count));
    }
    wait_for_device();
    for (size_t r = 0; r < args.size(); ++r) {
      Stream own = scratch[r].stream(nullptr);
      own.handle = handles[r].get();
      kernel.launch(raw(args[r]), static_cast<int>(r) == rank_ ? stream : own);
    }
    wait_for_device();
  }

  std::vector<std::unique_ptr<Communicator>> comms_;
};

class AllReduceCase : public CollectiveCase {
 public:
  AllReduceCase(int64_t rows, int64_t n, const Numerics& numerics, int ranks, Rng& rng)
      : CollectiveCase(ranks / 2, ranks), n_(n), numerics_(numerics) {
    rows_ = rows;
    add_in_out(n, Values::Normal, rng);
    for (int r = 0; r < ranks_; ++r) {
      given_.push_back(std::make_unique<Matrix>(rows, n));
      changed_.push_back(std::make_unique<Matrix>(rows, n));
      given_.back()->fill(Values::Normal, rng);
    }
    given_[static_cast<size_t>(rank_)]->copy_from(output(0));
  }
  std::string describe() const override {
    return "all_reduce rows " + std::to_string(rows_) + " n " + std::to_string(n_);
  }
  Call call() const override {
    return {.op = Op::AllReduce, .m_lo = rows_, .m_hi = rows_, .k = n_, .ranks = ranks_, .numerics = numerics_};
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
    check_ranks(problems);
    const double round_off = contract.error_bound.c * ranks_ * unit_roundoff(contract.error_bound.unit);
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
        for (int other = 0; other < ranks_; ++other)
          if (other != rank_ && changed_[static_cast<size_t>(other)]->row(t)[i] != have)
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
  GatherColumnsCase(int64_t rows, int64_t share, int64_t last, int ranks, Rng& rng)
      : CollectiveCase(0, ranks), share_(share), n_(ranks == 1 ? share : share * (ranks - 1) + last) {
    rows_ = rows;
    add_input(share, Values::Normal, rng);
    add_output(n_);
    for (int r = 0; r < ranks_; ++r) {
      given_.push_back(std::make_unique<Matrix>(rows, r > 0 && r + 1 == ranks_ ? last : share));
      given_.back()->fill(Values::Normal, rng);
    }
    given_[0]->copy_from(in(0));
  }
  std::string describe() const override {
    return "gather_columns rows " + std::to_string(rows_) + " n " + std::to_string(n_);
  }
  Call call() const override {
    return {.op = Op::GatherColumns, .m_lo = rows_, .m_hi = rows_, .k = share_, .ranks = ranks_};
  }
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
    check_ranks(problems);
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
  // There is one device, and joining its rank to itself takes a library a second.
  const int ranks = contract.own_device ? 1 : kManyRanks;
  const std::vector<int64_t> widths =
      contract.own_device ? std::vector<int64_t>{37} : std::vector<int64_t>{1, 37, 1024};
  if (contract.op == Op::AllReduce)
    for (const int64_t rows : edge_rows(contract, {1, 3, 20}))
      for (const int64_t n : widths)
        for (const Numerics& numerics : edge_numerics(contract))
          out.push_back(std::make_unique<AllReduceCase>(rows, n, numerics, ranks, rng));
  // More than goes at a time.
  if (contract.op == Op::AllReduce && contract.peer_bytes > 0 && contract.limits.message_bytes_max == 0)
    out.push_back(std::make_unique<AllReduceCase>(3, 500'001, Numerics{}, ranks, rng));
  if (contract.op == Op::GatherColumns)
    for (const int64_t rows : edge_rows(contract, {1, 5}))
      for (const int64_t last : {1, 40, 64})
        out.push_back(std::make_unique<GatherColumnsCase>(rows, 64, last, ranks, rng));
}

}  // namespace plumb::testing

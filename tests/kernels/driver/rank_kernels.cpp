// Ranks as processes that share the first GPU, and the kernels that join them: sums against those of comm/ and between
// ranks, recorded and not, and what becomes of a rank whose peer ends or stops.
//
// usage: rank_kernels KERNEL RANKS [kill | stop]
// Prints what was found and ends with exit code 1 when something is wrong, 77 without a GPU.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "comm/collectives.h"
#include "comm/socket_communicator.h"
#include "device/compute_device.h"
#include "ops/kernel.h"
#include "tensor/encode.h"

namespace plumb::testing {
namespace {

constexpr std::chrono::milliseconds kDeadline{3000};
constexpr int kReplays = 40;

struct Shape {
  int64_t rows, n;
};
// Whole vectors and not, one block and many, and more than goes at a time.
const std::vector<Shape> kShapes{{1, 6144}, {6, 6144}, {3, 37}, {1, 1}, {10, 6144}, {2, 6144}};
const std::vector<Shape> kLargeShapes{{64, 6144}, {513, 6144}, {7, 333}, {40, 6144}};

class Ranks {
 public:
  Ranks(std::unique_ptr<Communicator> comm, const Kernel& kernel, ComputeDevice device)
      : comm_(std::move(comm)), kernel_(kernel), device_(std::move(device)) {}
  ~Ranks() { comm_->detach_links(); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  Status open() {
    comm_->set_deadline(std::chrono::minutes(2));
    PLUMB_TRY_STATUS(introduce(*comm_));
    PLUMB_TRY_STATUS(kernel_.connect(*comm_));
    PLUMB_TRY(workspace_, device_.memory.allocate(size_t{64} << 20, "workspace"));
    device_.stream.workspace = workspace_.get();
    device_.stream.workspace_bytes = size_t{64} << 20;
    return barrier(*comm_);
  }
  // Sums or gathers of a shape, several launches each; `salt` makes every input another one.
  Status check(const Shape& shape, bool round, uint32_t salt) {
    return kernel_.contract.op == Op::AllReduce ? check_sum(shape, round, salt) : check_gather(shape, salt);
  }
  Status check_recorded(const Shape& shape);
  // Until another rank is gone; seconds that took.
  Result<double> wait_for_loss();
  Communicator& comm() { return *comm_; }
  void launch(const std::shared_ptr<std::byte>& x, const Shape& shape, bool round) {
    Tensor tensor(x.get(), DType::F32, {shape.rows, shape.n});
    tensor.where = Where::Cuda;
    const AllReduceArgs args{.comm = comm_.get(), .x = tensor, .numerics = {.round_bf16 = round}};
    kernel_.launch(&args, device_.stream);
  }

 private:
  static std::vector<float> values(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> out(count);
    for (float& value : out) value = normal(random);
    return out;
  }
  std::vector<float> given(const Shape& shape, uint32_t salt) const {
    return values(static_cast<size_t>(shape.rows * shape.n), salt * 64 + static_cast<uint32_t>(comm_->rank()));
  }
  Status check_sum(const Shape& shape, bool round, uint32_t salt);
  Status check_gather(const Shape& shape, uint32_t salt);
  // On every rank: what comm/ makes of the same values, and one rank's bits against the others'.
  Status compare(const std::vector<float>& mine, const std::vector<float>& have, bool round, const Shape& shape);
  Error wrong(const Shape& shape, const std::string& what) const {
    return {Code::Verification,
            kernel_.contract.name + " [" + std::to_string(shape.rows) + ", " + std::to_string(shape.n) + "]: " + what,
            "",
            {}};
  }
  std::vector<float> home(const void* from, size_t count) {
    std::vector<float> out(count);
    device_.memory.download(out.data(), from, count * 4, device_.stream);
    return out;
  }

  std::unique_ptr<Communicator> comm_;
  const Kernel& kernel_;
  ComputeDevice device_;
  std::shared_ptr<std::byte> workspace_{};
};

Status Ranks::compare(const std::vector<float>& mine, const std::vector<float>& have, bool round, const Shape& shape) {
  comm_->look();
  if (comm_->failure()) return *comm_->failure();
  std::vector<float> want = mine;
  PLUMB_TRY_STATUS(all_reduce(*comm_, want));
  if (round)
    for (float& value : want) value = round_bf16(value);
  std::vector<float> all(have.size() * static_cast<size_t>(comm_->size()));
  PLUMB_TRY_STATUS(all_gather(*comm_, std::as_bytes(std::span(have)), std::as_writable_bytes(std::span(all))));
  for (size_t i = 0; i < all.size(); ++i)
    if (std::memcmp(&all[i], &all[i % have.size()], 4) != 0) return wrong(shape, "the ranks have different bits");
  for (size_t i = 0; i < have.size(); ++i) {
    const bool same = std::memcmp(&have[i], &want[i], 4) == 0;
    const float off = std::abs(have[i] - want[i]), bound = round ? 0.05f : 1e-5f;
    if (kernel_.contract.sum_order == "rank_order" ? !same : !(off < bound))
      return wrong(shape, "element " + std::to_string(i) + " is " + std::to_string(have[i]) + " in place of " +
                              std::to_string(want[i]));
  }
  return Ok{};
}

Status Ranks::check_sum(const Shape& shape, bool round, uint32_t salt) {
  const std::vector<float> mine = given(shape, salt);
  PLUMB_TRY(const auto x, device_.memory.allocate(mine.size() * 4, "x"));
  device_.memory.upload(x.get(), mine.data(), mine.size() * 4, device_.stream);
  launch(x, shape, round);
  return compare(mine, home(x.get(), mine.size()), round, shape);
}

// The last rank's columns are fewer.
Status Ranks::check_gather(const Shape& shape, uint32_t salt) {
  const int64_t share = 512, last = 100, n = share * (comm_->size() - 1) + last;
  const auto width = [&](int rank) { return rank + 1 == comm_->size() ? last : share; };
  const std::vector<float> mine = given({shape.rows, width(comm_->rank())}, salt);
  PLUMB_TRY(const auto x, device_.memory.allocate(mine.size() * 4, "x"));
  PLUMB_TRY(const auto y, device_.memory.allocate(static_cast<size_t>(shape.rows * n) * 4, "y"));
  device_.memory.upload(x.get(), mine.data(), mine.size() * 4, device_.stream);
  const GatherColumnsArgs args{.comm = comm_.get(),
                               .x = Tensor(x.get(), DType::F32, {shape.rows, width(comm_->rank())}),
                               .share = share,
                               .y = Tensor(y.get(), DType::F32, {shape.rows, n})};
  kernel_.launch(&args, device_.stream);
  const std::vector<float> have = home(y.get(), static_cast<size_t>(shape.rows * n));
  comm_->look();
  if (comm_->failure()) return *comm_->failure();
  for (int r = 0; r < comm_->size() && comm_->rank() == 0; ++r) {
    const std::vector<float> theirs =
        values(static_cast<size_t>(shape.rows * width(r)), salt * 64 + static_cast<uint32_t>(r));
    for (int64_t t = 0; t < shape.rows; ++t)
      if (std::memcmp(&have[static_cast<size_t>(t * n + r * share)], &theirs[static_cast<size_t>(t * width(r))],
                      static_cast<size_t>(width(r)) * 4) != 0)
        return wrong(shape, "row " + std::to_string(t) + " of rank " + std::to_string(r) + " is not its own");
  }
  return Ok{};
}

// Three sums in one recording, replayed on new values each time.
Status Ranks::check_recorded(const Shape& shape) {
  const size_t count = static_cast<size_t>(shape.rows * shape.n);
  PLUMB_TRY(const auto x, device_.memory.allocate(count * 4, "x"));
  const auto launches = [&] {
    for (int i = 0; i < 3; ++i) launch(x, shape, false);
  };
  launches();
  device_.memory.synchronise(device_.stream);
  const std::shared_ptr<void> recording = device_.memory.record(launches, device_.stream);
  for (int replay = 0; replay < kReplays; ++replay) {
    const std::vector<float> mine = given(shape, 1000 + static_cast<uint32_t>(replay));
    device_.memory.upload(x.get(), mine.data(), count * 4, device_.stream);
    device_.memory.replay(recording.get(), device_.stream);
    std::vector<float> have = home(x.get(), count);
    // The second and third add equal values: times the number of ranks each, exactly for a power of two.
    if ((comm_->size() & (comm_->size() - 1)) != 0) continue;
    for (float& value : have) value /= static_cast<float>(comm_->size() * comm_->size());
    PLUMB_TRY_STATUS(compare(mine, have, false, shape));
  }
  return Ok{};
}

Result<double> Ranks::wait_for_loss() {
  const Shape shape{6, 6144};
  PLUMB_TRY(const auto x, device_.memory.allocate(static_cast<size_t>(shape.rows * shape.n) * 4, "x"));
  comm_->set_deadline(kDeadline);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    launch(x, shape, false);
    device_.memory.synchronise(device_.stream);
    comm_->look();
    if (comm_->failed()) return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return Error{Code::Verification, "the loss of a rank was not noticed", "", {}};
}

Status run(Ranks& ranks, const std::string& kernel, const std::string& end) {
  PLUMB_TRY_STATUS(ranks.open());
  if (!end.empty()) {
    if (ranks.comm().rank() == 1)
      std::thread([&end] {
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        kill(getpid(), end == "kill" ? SIGKILL : SIGSTOP);
      }).detach();
    PLUMB_TRY(const double seconds, ranks.wait_for_loss());
    const std::string& why = ranks.comm().failure()->what;
    std::printf("%s: %s after %.2f s\n", kernel.c_str(), why.c_str(), seconds);
    // Whose answer it lacks, a library does not say; whose end it was, the connection does.
    const bool unnamed = end == "stop" && kernel.find("nccl") != std::string::npos;
    if (seconds < 5 && why.find(unnamed ? "no answer" : "rank 1") != std::string::npos) return Ok{};
    return *ranks.comm().failure();
  }
  std::vector<Shape> shapes = kShapes;
  if (kernel.find("one_shot") == std::string::npos)
    shapes.insert(shapes.end(), kLargeShapes.begin(), kLargeShapes.end());
  uint32_t salt = 0;
  for (int round = 0; round < 6; ++round)
    for (const Shape& shape : shapes) PLUMB_TRY_STATUS(ranks.check(shape, round % 2 == 1, ++salt));
  if (kernel.find("all_reduce") == 0)
    for (const Shape& shape : {shapes[1], shapes[2], shapes.back()}) PLUMB_TRY_STATUS(ranks.check_recorded(shape));
  return barrier(ranks.comm());
}

int rank_main(int rank, std::vector<Socket> links, const std::string& name, const std::string& end) {
  // Ranks on one GPU are what NCCL refuses, unless it takes them for those of different hosts.
  setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  ThreadPool pool(1);
  auto device = open_device("cuda", 0, pool);
  if (!device) {
    std::printf("%s\n", device.error().to_string().c_str());
    return 77;
  }
  const Registry registry = make_registry();
  const Kernel* kernel = registry.find(name);
  if (kernel == nullptr || kernel->connect == nullptr || !kernel->contract.absent.empty()) {
    std::printf("%s: %s\n", name.c_str(), kernel == nullptr ? "no such kernel" : kernel->contract.absent.c_str());
    return kernel == nullptr ? 1 : 77;
  }
  Ranks ranks(std::make_unique<SocketCommunicator>(rank, std::move(links)), *kernel, *std::move(device));
  const Status status = run(ranks, name, end);
  if (!status) std::printf("rank %d: %s\n", rank, status.error().to_string().c_str());
  std::fflush(stdout);
  if (!end.empty()) _exit(status ? 0 : 1);  // as a process that has lost another does: nothing more is waited for
  return status ? 0 : 1;
}

int run_ranks(const std::string& name, int count, const std::string& end) {
  auto mesh = socket_mesh(count);
  if (!mesh) return 1;
  std::vector<pid_t> children;
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      std::vector<Socket> links = std::move((*mesh)[static_cast<size_t>(rank)]);
      mesh->clear();
      std::exit(rank_main(rank, std::move(links), name, end));
    }
    children.push_back(child);
  }
  mesh->clear();
  int worst = 0;
  for (size_t rank = 0; rank < children.size(); ++rank) {
    if (rank == 1 && end == "stop") kill(children[rank], SIGKILL);
    int status = 0;
    waitpid(children[rank], &status, 0);
    if (rank == 1 && !end.empty()) continue;
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  if (worst == 0) std::printf("%s: %d ranks, all as it should be\n", name.c_str(), count);
  return worst;
}

}  // namespace
}  // namespace plumb::testing

int main(int argc, char** argv) {
  if (argc < 3) return 1;
  return plumb::testing::run_ranks(argv[1], std::atoi(argv[2]), argc > 3 ? argv[3] : "");
}

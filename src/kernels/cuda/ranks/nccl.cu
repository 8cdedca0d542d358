// Ops among ranks by NCCL, which is loaded when it is there. Its kernels wait for each other without an end, so a
// thread looks at two words that they leave before and after, and ends the communicator when that takes too long.
#include "kernels/cuda/contracts/contracts.h"
#include "kernels/cuda/ranks/rank_kernels.h"

#ifdef PLUMB_HAVE_NCCL
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>

#include "comm/collectives.h"
#include "device/cuda_device.h"
#include "kernels/cuda/device_types.cuh"
#endif

namespace plumb::cuda {

#ifdef PLUMB_HAVE_NCCL
namespace {

using Clock = std::chrono::steady_clock;

struct Library {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  std::string absent{};  // why it cannot be used

  Library() {
    // It reads these once. NVLink multicast stays off whatever they said; the contract's order of sums is a ring's.
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    setenv("NCCL_ALGO", "Ring", 1);
    void* const handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      absent = "libnccl.so.2 was not found";
      return;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (function == nullptr) absent = std::string("libnccl.so.2 has no ") + name;
    };
    find(get_version, "ncclGetVersion");
    find(get_unique_id, "ncclGetUniqueId");
    find(init, "ncclCommInitRankConfig");
    find(get_async_error, "ncclCommGetAsyncError");
    find(abort, "ncclCommAbort");
    find(all_reduce, "ncclAllReduce");
    find(send, "ncclSend");
    find(receive, "ncclRecv");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
    find(error_string, "ncclGetErrorString");
    constexpr int kPatches = 100;  // 22809: 2.28.9
    int version = 0;
    if (absent.empty() && (get_version(&version) != ncclSuccess || version / kPatches < NCCL_VERSION_CODE / kPatches))
      absent = "libnccl.so.2 is version " + std::to_string(version) + ", this program was built for " +
               std::to_string(NCCL_VERSION_CODE);
  }
};
const Library& library() {
  static const Library kLibrary;
  return kLibrary;
}

// In page-locked memory: operations begun and ended so far, as the device counts them.
struct Marks {
  uint32_t begun, ended;
};
__global__ void mark(uint32_t* count, volatile uint32_t* shown) { *shown = ++*count; }

class NcclLink final : public DeviceLink {
 public:
  static Status connect(Communicator& comm);
  ~NcclLink() override;
  NcclLink() = default;
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  // calls(communicator) between two marks in the stream; nothing once it has given up.
  template <class Calls>
  void run(Stream& stream, Calls calls);

  std::optional<Error> failure() const override;
  void set_deadline(std::chrono::milliseconds deadline) override { deadline_ = deadline; }
  void look_after(bool lost) override;

 private:
  Status open(Communicator& comm, const ncclUniqueId& id);
  ncclResult_t settle(ncclResult_t result, std::chrono::milliseconds deadline);
  void give_up(const std::string& why);

  std::mutex mutex_{};  // of comm_
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> given_up_{false};
  std::string why_{};  // written before given_up_
  std::atomic<std::chrono::milliseconds> deadline_{};
  Marks* marks_ = nullptr;
  uint32_t* counts_ = nullptr;  // [2] on the device
  uint32_t waits_for_ = 0;      // of the thread that looks after it: the operation under way, and since when
  Clock::time_point since_{};
};

std::string text_of(ncclResult_t result) { return std::string("NCCL: ") + library().error_string(result); }

// Calls return before they are done; the stream must not be touched until they are. A deadline of 0: none.
ncclResult_t NcclLink::settle(ncclResult_t result, std::chrono::milliseconds deadline) {
  const Clock::time_point begin = Clock::now();
  while (result == ncclInProgress) {
    if (deadline.count() > 0 && Clock::now() - begin > deadline) break;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (const ncclResult_t asked = library().get_async_error(comm_, &result); asked != ncclSuccess) return asked;
  }
  return result;
}

// With mutex_. Ending the communicator ends its kernels; what was recorded with it must not run again.
void NcclLink::give_up(const std::string& why) {
  if (given_up_) return;
  why_ = why;
  given_up_ = true;
  library().abort(comm_);
}

template <class Calls>
void NcclLink::run(Stream& stream, Calls calls) {
  const std::scoped_lock lock(mutex_);
  if (given_up_) return;
  auto* const raw = static_cast<cudaStream_t>(stream.handle);
  mark<<<1, 1, 0, raw>>>(counts_, &marks_->begun);
  library().group_start();
  ncclResult_t result = calls(comm_);
  const ncclResult_t ended = library().group_end();
  if (result == ncclSuccess || result == ncclInProgress) result = ended;
  result = settle(result, deadline_);
  if (result == ncclInProgress) return give_up("NCCL did not begin an operation in time");
  if (result != ncclSuccess) return give_up(text_of(result));
  mark<<<1, 1, 0, raw>>>(counts_ + 1, &marks_->ended);
}

std::optional<Error> NcclLink::failure() const {
  if (!given_up_) return std::nullopt;
  return Error{Code::Peer, why_, "", {}};
}

void NcclLink::look_after(bool lost) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || given_up_) return;
  ncclResult_t state = ncclSuccess;
  library().get_async_error(comm_, &state);
  if (state != ncclSuccess && state != ncclInProgress) return give_up(text_of(state));
  const uint32_t begun = std::atomic_ref(marks_->begun).load(), ended = std::atomic_ref(marks_->ended).load();
  const Clock::time_point now = Clock::now();
  if (begun == ended || begun != waits_for_) since_ = now;
  waits_for_ = begun;
  if (begun == ended) return;
  const std::chrono::milliseconds deadline = deadline_;
  const bool over = deadline.count() > 0 && now - since_ > deadline;
  if (over || lost)
    give_up("no answer within " + std::to_string(deadline.count()) + " ms: NCCL does not say from which rank");
}

Status NcclLink::open(Communicator& comm, const ncclUniqueId& id) {
  constexpr std::chrono::milliseconds kOpening{60'000};
  void* memory = nullptr;
  cudaError_t status = cudaMalloc(&memory, 2 * sizeof(uint32_t));
  if (status == cudaSuccess) status = cudaMemset(memory, 0, 2 * sizeof(uint32_t));
  if (status == cudaSuccess) status = cudaStreamSynchronize(nullptr);
  counts_ = static_cast<uint32_t*>(memory);
  if (status == cudaSuccess) status = cudaHostAlloc(&memory, sizeof(Marks), cudaHostAllocMapped);
  if (status != cudaSuccess)
    return Error{Code::Environment, std::string("no memory beside NCCL: ") + cudaGetErrorString(status), "", {}};
  marks_ = new (memory) Marks{};
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.collnetEnable = 0;
  ncclResult_t result = library().init(&comm_, comm.size(), id, comm.rank(), &config);
  const Clock::time_point begin = Clock::now();
  while (result == ncclInProgress && comm.others_here() && Clock::now() - begin < kOpening)
    result = settle(result, std::chrono::milliseconds(20));
  if (result == ncclSuccess) return Ok{};
  if (comm_ != nullptr) give_up("");
  return Error{Code::Environment,
               result == ncclInProgress ? "NCCL has not brought the ranks together" : text_of(result),
               "NCCL_DEBUG=INFO makes it say more",
               {"--kernel all_reduce=all_reduce.host.cuda"}};
}

// The id of the ranks' meeting comes from rank 0.
Status NcclLink::connect(Communicator& comm) {
  if (comm.attached<NcclLink>() != nullptr) return Ok{};
  struct {
    ncclResult_t result = ncclSuccess;
    ncclUniqueId id{};
  } meeting;
  if (comm.rank() == 0) meeting.result = library().get_unique_id(&meeting.id);
  PLUMB_TRY_STATUS(broadcast(comm, 0, std::as_writable_bytes(std::span(&meeting, 1))));
  if (meeting.result != ncclSuccess) return Error{Code::Environment, text_of(meeting.result), "", {}};
  auto link = std::make_unique<NcclLink>();
  PLUMB_TRY_STATUS(share_failure(comm, link->open(comm, meeting.id)));
  comm.attach(std::move(link));
  return Ok{};
}

// Ends by itself: the other ranks may be gone.
NcclLink::~NcclLink() {
  if (comm_ != nullptr && !given_up_) library().abort(comm_);
  cudaFree(counts_);
  cudaFreeHost(marks_);
}

NcclLink& link_of(const Communicator& comm) {
  auto* const link = comm.attached<NcclLink>();
  PLUMB_CHECK(link != nullptr, "ranks are connected before they launch");
  return *link;
}
cudaStream_t handle(Stream& stream) { return static_cast<cudaStream_t>(stream.handle); }
unsigned blocks(int64_t elements) {
  constexpr int64_t kThreads = 256, kMost = 4096;
  return static_cast<unsigned>(std::clamp<int64_t>((elements + kThreads - 1) / kThreads, 1, kMost));
}

// to[t, i] = from[t, i], rounded to bf16 if asked
struct Copy {
  const float* from;
  int64_t from_ld;
  float* to;
  int64_t to_ld, rows, n;
  bool round;
};
__global__ void copy_rows(Copy c) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < c.rows * c.n; i += step) {
    const int64_t t = i / c.n, j = i % c.n;
    const float value = c.from[t * c.from_ld + j];
    c.to[t * c.to_ld + j] = c.round ? round_bf16(value) : value;
  }
}
void copy(const Copy& c, Stream& stream) { copy_rows<<<blocks(c.rows * c.n), 256, 0, handle(stream)>>>(c); }

void all_reduce_rows(const AllReduceArgs& args, Stream& stream) {
  auto* const x = static_cast<float*>(args.x.data);
  const int64_t rows = args.x.dim(0), n = args.x.dim(1), ld = args.x.ld;
  const int64_t messages = args.x.contiguous() ? 1 : rows;
  link_of(*args.comm).run(stream, [&](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    for (int64_t t = 0; t < messages && (result == ncclSuccess || result == ncclInProgress); ++t)
      result = library().all_reduce(x + t * ld, x + t * ld, static_cast<size_t>(rows / messages * n), ncclFloat32,
                                    ncclSum, comm, handle(stream));
    return result;
  });
  if (args.numerics.round_bf16) copy({x, ld, x, ld, rows, n, true}, stream);
}

// In pieces whose columns of all ranks fit the workspace; a sender packs its own there.
void gather_shares(const GatherColumnsArgs& args, Stream& stream) {
  const Communicator& ranks = *args.comm;
  const auto* const x = static_cast<const float*>(args.x.data);
  auto* const y = static_cast<float*>(args.y.data);
  auto* const packed = reinterpret_cast<float*>(stream.workspace);
  const int64_t n = args.y.dim(1);
  const int64_t most = std::max<int64_t>(kPieceBytes / 4 / (args.share * ranks.size()), 1);
  const auto width_of = [&](int rank) { return std::min(args.share, n - rank * args.share); };
  for (int64_t first = 0; first < args.x.dim(0); first += most) {
    const int64_t rows = std::min(most, args.x.dim(0) - first);
    const auto piece = [&](int rank) { return static_cast<size_t>(rows * width_of(rank)); };
    const bool leads = ranks.rank() == 0;
    if (leads)
      copy({x + first * args.x.ld, args.x.ld, y + first * args.y.ld, args.y.ld, rows, width_of(0), false}, stream);
    else
      copy({x + first * args.x.ld, args.x.ld, packed, args.x.dim(1), rows, args.x.dim(1), false}, stream);
    link_of(ranks).run(stream, [&](ncclComm_t comm) {
      ncclResult_t result = ncclSuccess;
      if (!leads) return library().send(packed, piece(ranks.rank()), ncclFloat32, 0, comm, handle(stream));
      for (int p = 1; p < ranks.size() && (result == ncclSuccess || result == ncclInProgress); ++p)
        result = library().receive(packed + p * rows * args.share, piece(p), ncclFloat32, p, comm, handle(stream));
      return result;
    });
    for (int p = 1; leads && p < ranks.size(); ++p)
      copy({packed + p * rows * args.share, width_of(p), y + first * args.y.ld + p * args.share, args.y.ld, rows,
            width_of(p), false},
           stream);
  }
}

}  // namespace

void add_nccl(std::vector<Kernel>& out) {
  out.push_back(make_kernel<AllReduceArgs, all_reduce_rows>(nccl_contract(Op::AllReduce)));
  out.push_back(make_kernel<GatherColumnsArgs, gather_shares>(nccl_contract(Op::GatherColumns)));
  for (Kernel* kernel : {&out[out.size() - 2], &out.back()}) {
    kernel->connect = NcclLink::connect;
    kernel->contract.absent = library().absent;
  }
}

#else

void add_nccl(std::vector<Kernel>& out) {
  for (const Op op : {Op::AllReduce, Op::GatherColumns}) {
    out.push_back({.contract = nccl_contract(op)});
    out.back().contract.absent = "this build was made without nccl.h";
  }
}

#endif

}  // namespace plumb::cuda

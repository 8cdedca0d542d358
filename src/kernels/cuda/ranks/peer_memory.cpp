#include "kernels/cuda/ranks/peer_memory.h"

#include <cuda_runtime.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <span>

#include "comm/collectives.h"

namespace plumb::cuda {
namespace {

Status failed(const char* what, cudaError_t status) {
  return Error{Code::Environment,
               std::string(what) + ": " + cudaGetErrorString(status),
               "ranks whose devices reach each other add up through such memory",
               {"--kernel all_reduce=all_reduce.host.cuda --kernel gather_columns=gather_columns.host.cuda"}};
}

// Of this process, on whatever machine: ranks that are threads of one have each other's pointers.
uint64_t process_token() {
  static const uint64_t kToken = (uint64_t{std::random_device()()} << 32) ^ std::random_device()();
  return kToken ^ static_cast<uint64_t>(getpid());
}

template <class T>
std::atomic_ref<T> shared(T& word) {
  return std::atomic_ref<T>(word);
}

}  // namespace

struct PeerMemory::Offer {
  uint64_t process = 0;
  Mailbox* pointer = nullptr;
  cudaIpcMemHandle_t handle{};
};

Status PeerMemory::allocate(Offer& offer) {
  static_assert(sizeof(Mailbox) <= 2 * (kMostPeers * kOneShotBytes + 3 * kPieceBytes) + (1 << 20),
                "more than the contracts say");
  void* memory = nullptr;
  if (const cudaError_t status = cudaMalloc(&memory, sizeof(Mailbox)); status != cudaSuccess)
    return failed("no device memory for what ranks send each other", status);
  auto* const box = static_cast<Mailbox*>(memory);
  view_.box[view_.rank] = box;
  // What is read before it was written shows: only flags begin as zeros.
  cudaError_t status = cudaMemset(box, 0xff, sizeof(Mailbox));
  if (status == cudaSuccess) status = cudaMemset(box, 0, offsetof(Mailbox, sums));
  if (status == cudaSuccess) status = cudaStreamSynchronize(nullptr);
  if (status == cudaSuccess) status = cudaIpcGetMemHandle(&offer.handle, box);
  if (status != cudaSuccess) return failed("device memory cannot be shown to other processes", status);
  void* control = nullptr;
  if (status = cudaHostAlloc(&control, sizeof(PeerControl), cudaHostAllocMapped); status != cudaSuccess)
    return failed("no page-locked memory", status);
  view_.control = new (control) PeerControl;
  offer.process = process_token();
  offer.pointer = box;
  return Ok{};
}

Status PeerMemory::open(const std::vector<Offer>& offers) {
  for (int p = 0; p < view_.ranks; ++p) {
    const Offer& offer = offers[static_cast<size_t>(p)];
    if (p == view_.rank) continue;
    if (offer.process == process_token()) {
      view_.box[p] = offer.pointer;
      continue;
    }
    void* memory = nullptr;
    if (const cudaError_t status = cudaIpcOpenMemHandle(&memory, offer.handle, cudaIpcMemLazyEnablePeerAccess);
        status != cudaSuccess)
      return failed(("the device memory of " + comm_.name_of(p) + " cannot be reached").c_str(), status);
    opened_.push_back(memory);
    view_.box[p] = static_cast<Mailbox*>(memory);
  }
  return Ok{};
}

Status PeerMemory::connect(Communicator& comm) {
  if (comm.attached<PeerMemory>() != nullptr) return Ok{};
  auto link = std::make_unique<PeerMemory>(comm);
  link->view_.rank = comm.rank();
  link->view_.ranks = comm.size();
  std::vector<Offer> offers(static_cast<size_t>(comm.size()));
  Offer& mine = offers[static_cast<size_t>(comm.rank())];
  PLUMB_TRY_STATUS(share_failure(comm, link->allocate(mine)));
  const Offer sent = mine;
  PLUMB_TRY_STATUS(all_gather(comm, std::as_bytes(std::span(&sent, 1)), std::as_writable_bytes(std::span(offers))));
  PLUMB_TRY_STATUS(share_failure(comm, link->open(offers)));
  comm.attach(std::move(link));
  return Ok{};
}

PeerMemory::~PeerMemory() {
  for (void* memory : opened_) cudaIpcCloseMemHandle(memory);
  cudaFree(view_.box[view_.rank]);
  cudaFreeHost(view_.control);
}

std::optional<Error> PeerMemory::failure() const {
  std::vector<int> late;
  for (int p = 0; p < view_.ranks; ++p)
    if (shared(view_.control->late[p]).load() != 0) late.push_back(p);
  if (late.empty()) return std::nullopt;
  return comm_.missing(late, "no answer within " + std::to_string(comm_.deadline().count()) + " ms");
}

void PeerMemory::set_deadline(std::chrono::milliseconds deadline) {
  shared(view_.control->deadline_ns).store(static_cast<uint64_t>(deadline.count()) * 1'000'000);
}

void PeerMemory::look_after(bool lost) {
  if (lost) shared(view_.control->give_up).store(1);
}

}  // namespace plumb::cuda

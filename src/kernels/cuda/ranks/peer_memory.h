// Memory of each rank's device that the others read and write, and what their kernels need to find their way in it.
//
// Launches of each kernel are numbered, and a flag holds the number of the launch it speaks of, so none is ever reset.
// Everything is there twice, for odd and even launches: who is in launch n + 2 has seen a flag of launch n + 1 of every
// other rank, whose launch n was over when it was raised.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "kernels/cuda/contracts/contracts.h"

namespace plumb::cuda {

// Blocks of a launch at most. They wait for the other ranks' blocks of the same number, so all of them must come to
// run, whatever else is there and ends by itself: few enough for any device, whose multiprocessors hold eight each.
inline constexpr int kPeerBlocks = 128;
// Slices of a piece, one a rank, are rounded up to whole vectors.
inline constexpr int64_t kSlicesFloats = kPieceBytes / 4 + kMostPeers * 4;

// Launches of one kernel: those that are over, and the blocks of the one under way that are.
struct Turns {
  uint32_t launches, blocks;
};
struct Mailbox {
  uint32_t broken;  // a wait was in vain: nothing is sent or awaited any more
  Turns sum, slice, gather;
  uint32_t taken;                                 // by rank 0: launches of gather whose columns it has read
  uint32_t sum_flag[2][kMostPeers][kPeerBlocks];  // raised by rank [p]
  uint32_t slice_flag[2][kMostPeers][kPeerBlocks];
  uint32_t whole_flag[2][kMostPeers][kPeerBlocks];
  uint32_t columns_flag[2][kMostPeers][kPeerBlocks];
  alignas(256) float sums[2][kMostPeers][kOneShotBytes / 4];  // rank [p]'s message
  float slices[2][kSlicesFloats];     // the ranks' parts of this rank's slice, one after the other
  float whole[2][kSlicesFloats];      // every rank's finished slice
  float columns[2][kPieceBytes / 4];  // this rank's, for rank 0 to read
};

// In page-locked memory of the host: looked at only by kernels that have waited for long.
struct PeerControl {
  uint64_t deadline_ns = 0;  // 0: none
  uint32_t give_up = 0;
  uint32_t late[kMostPeers] = {};
};

struct PeerView {
  int rank = 0, ranks = 1;
  Mailbox* box[kMostPeers] = {};  // each rank's, as this one's kernels reach it
  PeerControl* control = nullptr;
  constexpr Mailbox& own() const { return *box[rank]; }
};

class PeerMemory final : public DeviceLink {
 public:
  // On all ranks at once. Error (Environment): a rank cannot get the memory or reach another's, on all of them.
  static Status connect(Communicator& comm);
  explicit PeerMemory(const Communicator& comm) : comm_(comm) {}
  ~PeerMemory() override;
  const PeerView& view() const { return view_; }

  std::optional<Error> failure() const override;
  void set_deadline(std::chrono::milliseconds deadline) override;
  void look_after(bool lost) override;

 private:
  struct Offer;
  Status allocate(Offer& offer);
  Status open(const std::vector<Offer>& offers);

  const Communicator& comm_;
  PeerView view_{};
  std::vector<void*> opened_{};
};

}  // namespace plumb::cuda

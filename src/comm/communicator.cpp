#include "comm/communicator.h"

#include "base/check.h"

namespace plumb {

Status Communicator::exchange(std::span<const Out> out, std::span<const In> in) {
  if (failure_) return *failure_;
  PLUMB_CHECK(static_cast<int>(out.size()) == size_ && static_cast<int>(in.size()) == size_,
              "an exchange has a part for every rank");
  const auto begin = std::chrono::steady_clock::now();
  Status status = do_exchange(out, in);
  waited_ns_ += static_cast<uint64_t>((std::chrono::steady_clock::now() - begin).count());
  ++exchanges_;
  for (const Out& part : out) bytes_sent_ += part.size();
  if (!status) fail(status.error());
  return status;
}

void Communicator::fail(Error error) {
  if (failure_) return;
  failure_ = std::move(error);
  failed_ = true;
  tell_failure(failure_->what + (failure_->why.empty() ? "" : ": " + failure_->why));
}

std::string Communicator::name_of(int rank) const {
  const std::string& name = names_[static_cast<size_t>(rank)];
  return "rank " + std::to_string(rank) + (name.empty() ? "" : " (" + name + ")");
}

Communicator::In Communicator::scratch(size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return In(scratch_).first(bytes);
}

Error Communicator::missing(std::span<const int> ranks, const std::string& what) const {
  std::string names;
  for (const int rank : ranks) names += (names.empty() ? "" : ", ") + name_of(rank);
  return {Code::Peer, what + ": " + names, "", {}};
}

}  // namespace plumb

#include "comm/communicator.h"

#include <algorithm>

#include "base/check.h"

namespace plumb {

namespace {
constexpr std::chrono::milliseconds kLinkWatch{20};
constexpr int kLooks = 10;  // a link may learn of a loss a moment before the transport does, which knows whose
}  // namespace

void Communicator::set_deadline(Milliseconds deadline) {
  deadline_ = deadline;
  for (const auto& link : links_) link->set_deadline(deadline);
}

// One thread looks after all links, from the last one attached on.
void Communicator::attach(std::unique_ptr<DeviceLink> link) {
  link_watch_ = {};
  link->set_deadline(deadline_);
  links_.push_back(std::move(link));
  link_watch_ = std::jthread([this](const std::stop_token& stop) {
    for (; !stop.stop_requested(); std::this_thread::sleep_for(kLinkWatch)) {
      const bool lost = !others_here();
      for (const auto& each : links_) each->look_after(lost);
    }
  });
}

void Communicator::detach_links() {
  link_watch_ = {};
  links_.clear();
}

bool Communicator::links_failed() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& link) { return link->failure().has_value(); });
}

void Communicator::look() {
  if (failure_) return;
  for (const auto& link : links_) {
    const std::optional<Error> given_up = link->failure();
    if (!given_up) continue;
    for (int i = 0; i < kLooks; ++i, std::this_thread::sleep_for(kLinkWatch))
      if (const Status seen = do_look(); !seen) return fail(seen.error());
    return fail(*given_up);
  }
}

Status Communicator::exchange(std::span<const Out> out, std::span<const In> in) {
  look();
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

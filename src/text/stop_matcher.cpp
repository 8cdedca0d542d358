#include "text/stop_matcher.h"

#include <algorithm>

namespace plumb {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : stops_(std::move(stops)), include_stop_(include_stop) {}

StopMatcher::Look StopMatcher::look(size_t at) const {
  Look out;
  const std::string_view rest = std::string_view(held_).substr(at);
  for (size_t i = 0; i < stops_.size(); ++i) {
    const std::string& stop = stops_[i];
    if (stop.empty()) continue;
    if (rest.starts_with(stop)) {
      if (out.settled_stop == kNone || stop.size() > stops_[out.settled_stop].size()) out.settled_stop = i;
    } else if (stop.size() > rest.size() && std::string_view(stop).starts_with(rest)) {
      out.open = true;
    }
  }
  return out;
}

std::string StopMatcher::advance(bool at_end) {
  size_t at = 0;
  for (; at < held_.size(); ++at) {
    const Look here = look(at);
    if (here.open && !at_end) break;
    if (here.settled_stop == kNone) continue;
    match_ = StopMatch{here.settled_stop, shown_bytes_ + at};
    std::string out = held_.substr(0, at + (include_stop_ ? stops_[here.settled_stop].size() : 0));
    held_.clear();
    return out;
  }
  std::string out = held_.substr(0, at);
  held_.erase(0, at);
  shown_bytes_ += at;
  return out;
}

std::string StopMatcher::push(std::string_view text) {
  if (match_) return {};
  held_ += text;
  return advance(/*at_end=*/false);
}

std::string StopMatcher::flush() { return match_ ? std::string() : advance(/*at_end=*/true); }

}  // namespace plumb

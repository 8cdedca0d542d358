// Stop strings in a stream (api.md 47-49): nothing of a stop string leaks before it is whole, and text that only looked
// like its beginning is released.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plumb {

struct StopMatch {
  size_t stop_index = 0;  // which of the given strings
  size_t begin = 0;       // byte of the whole stream where it begins
};

class StopMatcher {
 public:
  // Empty strings are ignored. `include_stop` leaves the stop string in the text.
  explicit StopMatcher(std::vector<std::string> stops, bool include_stop = false);

  // Takes the next text of the stream; returns what may be shown now. After a match everything is swallowed.
  // The earliest match wins, on equal beginning the longest: a match is only settled once no longer string that
  // begins at the same place can still come.
  std::string push(std::string_view text);
  // The end of the stream: settles a match that was waiting, else releases what was held back.
  std::string flush();
  const std::optional<StopMatch>& match() const { return match_; }

 private:
  struct Look {
    size_t settled_stop = kNone;  // longest stop string that is whole here
    bool open = false;            // a longer one may still become whole
  };
  static constexpr size_t kNone = static_cast<size_t>(-1);
  Look look(size_t at) const;
  std::string advance(bool at_end);

  std::vector<std::string> stops_;
  bool include_stop_;
  std::string held_{};
  size_t shown_bytes_ = 0;  // of the stream, before held_
  std::optional<StopMatch> match_{};
};

}  // namespace plumb

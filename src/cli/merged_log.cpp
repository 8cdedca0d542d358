#include "cli/merged_log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace plumb {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTogether{250};
constexpr size_t kLongestLine = size_t{1} << 20;

// "2026-01-31T12:00:00.000 warning ..." without its time.
std::string_view without_time(std::string_view line) {
  constexpr size_t kTime = 23;
  const bool timed = line.size() > kTime && line[10] == 'T' && line[kTime] == ' ' &&
                     std::isdigit(static_cast<unsigned char>(line[0])) != 0;
  return timed ? line.substr(kTime + 1) : line;
}

class Merger {
 public:
  Merger(size_t ranks, int first_rank, int out) : texts_(ranks), first_rank_(first_rank), out_(out) {}

  void add(size_t rank, std::string_view bytes);
  void end(size_t rank) {
    if (!texts_[rank].empty()) add_line(rank, std::exchange(texts_[rank], {}));
  }
  // Writes what has waited for long enough; `all`: everything.
  void flush(bool all);
  bool waiting() const { return !lines_.empty(); }

 private:
  struct Line {
    std::string text{};
    std::vector<size_t> ranks{};
    Clock::time_point seen{};
  };
  void add_line(size_t rank, std::string text);
  void write_line(const Line& line) const;

  std::vector<std::string> texts_;  // of each rank, a line that has not ended
  std::vector<Line> lines_{};
  int first_rank_, out_;
};

void Merger::add(size_t rank, std::string_view bytes) {
  std::string& text = texts_[rank];
  text += bytes;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    add_line(rank, text.substr(begin, end - begin));
    begin = end + 1;
  }
  text.erase(0, begin);
  if (text.size() > kLongestLine) end(rank);
}

void Merger::add_line(size_t rank, std::string text) {
  for (Line& line : lines_) {
    if (without_time(line.text) != without_time(text) || std::ranges::find(line.ranks, rank) != line.ranks.end())
      continue;
    line.ranks.push_back(rank);
    return;
  }
  lines_.push_back({std::move(text), {rank}, Clock::now()});
}

void Merger::write_line(const Line& line) const {
  std::string text = line.text + (line.ranks.size() > 1 ? " (ranks" : " (rank");
  std::vector<size_t> ranks = line.ranks;
  std::ranges::sort(ranks);
  for (size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? " " : ", ") + std::to_string(first_rank_ + static_cast<int>(ranks[i]));
  text += ")\n";
  for (std::string_view left = text; !left.empty();) {
    const ssize_t wrote = ::write(out_, left.data(), left.size());
    if (wrote < 0 && errno != EINTR) return;  // nobody reads
    left.remove_prefix(static_cast<size_t>(std::max<ssize_t>(wrote, 0)));
  }
}

void Merger::flush(bool all) {
  // In the order in which they came: none passes one that still waits.
  const auto now = Clock::now();
  size_t done = 0;
  while (done < lines_.size() &&
         (all || lines_[done].ranks.size() == texts_.size() || now - lines_[done].seen >= kTogether))
    write_line(lines_[done++]);
  lines_.erase(lines_.begin(), lines_.begin() + static_cast<std::ptrdiff_t>(done));
}

}  // namespace

void merge_logs(const std::vector<int>& pipes, int first_rank, int out) {
  Merger merger(pipes.size(), first_rank, out);
  std::vector<pollfd> open;
  open.reserve(pipes.size());
  for (const int fd : pipes) open.push_back({.fd = fd, .events = POLLIN, .revents = 0});
  std::array<char, 4096> bytes{};
  for (size_t left = open.size(); left > 0;) {
    if (poll(open.data(), open.size(), merger.waiting() ? static_cast<int>(kTogether.count()) : -1) < 0 &&
        errno != EINTR)
      break;
    for (size_t rank = 0; rank < open.size(); ++rank) {
      if (open[rank].fd < 0 || open[rank].revents == 0) continue;
      const ssize_t got = read(open[rank].fd, bytes.data(), bytes.size());
      if (got < 0 && errno == EINTR) continue;
      if (got > 0) {
        merger.add(rank, {bytes.data(), static_cast<size_t>(got)});
        continue;
      }
      merger.end(rank);
      close(std::exchange(open[rank].fd, -1));
      --left;
    }
    merger.flush(false);
  }
  merger.flush(true);
}

}  // namespace plumb

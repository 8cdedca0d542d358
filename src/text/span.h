// A range of bytes, and sorted lists of them.
#pragma once

#include <cstddef>
#include <span>

namespace plumb {

struct Span {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const Span&) const = default;
};

// Whether [begin, end) shares a byte with one of the sorted, disjoint spans.
inline bool touches(std::span<const Span> spans, size_t begin, size_t end) {
  size_t low = 0;
  size_t high = spans.size();
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (spans[middle].end <= begin) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < spans.size() && spans[low].begin < end;
}

}  // namespace plumb

#include "serve/trace_context.h"

#include <algorithm>
#include <cstdio>

namespace plumb {

namespace {

// Lower-case hexadecimal, not all zero: what the specification asks of ids.
bool is_id(std::string_view text, size_t size) {
  const bool hex =
      std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  return text.size() == size && hex && text.find_first_not_of('0') != std::string_view::npos;
}

std::string random_id(std::mt19937_64& random) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(random() | 1));
  return text;
}

}  // namespace

TraceContext read_traceparent(std::string_view header, std::mt19937_64& random) {
  // version "-" trace "-" parent "-" flags; later versions may append more.
  TraceContext trace{.span_id = random_id(random)};
  const bool framed = header.size() >= 55 && header[2] == '-' && header[35] == '-' && header[52] == '-' &&
                      (header.size() == 55 || (header[55] == '-' && !header.starts_with("00")));
  const std::string_view flags = framed ? header.substr(53, 2) : "";
  if (framed && !header.starts_with("ff") && is_id(header.substr(3, 32), 32) && is_id(header.substr(36, 16), 16)) {
    trace.trace_id = header.substr(3, 32);
    trace.parent_span_id = header.substr(36, 16);
    trace.sampled = std::string_view("13579bdf").find(flags[1]) != std::string_view::npos;
  } else {
    trace.trace_id = random_id(random) + random_id(random);
  }
  return trace;
}

std::string traceparent_of(const TraceContext& trace) {
  return "00-" + trace.trace_id + "-" + trace.span_id + (trace.sampled ? "-01" : "-00");
}

}  // namespace plumb

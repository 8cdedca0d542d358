// The header `traceparent` of W3C trace context.
#pragma once

#include <random>
#include <string>
#include <string_view>

#include "serve/http.h"

namespace plumb {

// The caller's trace with a span of ours in it; a new trace when the header is absent or malformed.
TraceContext read_traceparent(std::string_view header, std::mt19937_64& random);
std::string traceparent_of(const TraceContext& trace);

}  // namespace plumb

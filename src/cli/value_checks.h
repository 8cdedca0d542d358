// Checks of option values. The library's own ranges let NaN through and clamp integers that don't fit.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <thread>

namespace plumb {

inline CLI::Validator number_from(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) -> std::string {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = error == std::errc() && end == text.data() + text.size();
        if (whole && value >= least && value <= most) return {};
        return "'" + text + "' is not a number from " + CLI::detail::to_string(least) + " to " +
               CLI::detail::to_string(most);
      },
      "", "");
}

inline CLI::Validator unsigned_number() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size()) return {};
        return "'" + text + "' is not an integer from 0 to 18446744073709551615";
      },
      "", "");
}

// Workers beyond a few a core only wait for each other.
inline CLI::Validator thread_count() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        const int cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
        const int most = std::max(16, 4 * cpus);
        int value = -1;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= most) return {};
        return "'" + text + "' is not a number of threads from 1 to " + std::to_string(most) + " (this machine has " +
               std::to_string(cpus) + " CPUs); 0 takes one a core";
      },
      "", "");
}

// Nothing that would end a header's line.
inline CLI::Validator header_value() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        for (const char c : text)
          if (static_cast<unsigned char>(c) < 32 || c == 127) return "has a control character";
        return {};
      },
      "", "");
}

inline CLI::Validator url_prefix() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        if (text.empty() || (text.front() == '/' && text.back() != '/')) return {};
        return "'" + text + "' does not begin with / or ends with it; /name works";
      },
      "", "");
}

// An empty key guards nothing and an empty name names nothing: mostly a variable that was not set.
inline CLI::Validator plain_text() {
  return header_value() &
         CLI::Validator([](const std::string& text) -> std::string { return text.empty() ? "is empty" : ""; }, "", "");
}

}  // namespace plumb

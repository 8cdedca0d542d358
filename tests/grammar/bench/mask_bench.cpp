// How long a token's mask takes, for a vocabulary of 150,000 byte-level tokens made up in the manner of byte pair
// merges: words with and without a leading space, punctuation runs, other scripts, parts of characters.
//
// usage: mask_bench [texts]      Prints for each constraint the time to compile it, and the median, the 99th percentile
// and the largest of the times from a token to the next token's mask, over random texts; cold: a new grammar for each
// text.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>

#include "grammar/compile.h"

namespace {

using plumb::grammar::ContentShape;
using plumb::grammar::Cursor;
using plumb::grammar::Grammar;
using plumb::grammar::Vocabulary;
using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

std::string word(std::mt19937& random) {
  static const char* const kSyllables[] = {"a",  "an",  "ing", "er", "th", "on", "re", "st", "co", "le", "ment",
                                           "al", "pre", "ti",  "us", "x",  "q",  "sh", "ou", "is", "ab", "ol",
                                           "ke", "ro",  "mi",  "du", "ba", "fu", "gi", "ny", "po", "wa"};
  std::string out;
  for (size_t n = 1 + random() % 4; n > 0; --n) out += kSyllables[random() % std::size(kSyllables)];
  return out;
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x800) {
    out += static_cast<char>(0xc0 | (c >> 6));
  } else {
    out += static_cast<char>(0xe0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3f));
  }
  out += static_cast<char>(0x80 | (c & 0x3f));
}

std::shared_ptr<const Vocabulary> vocabulary(size_t size) {
  static const char* const kPunctuation[] = {"\"", "'", "{", "}", "[",  "]",  "(", ")", ",", ":", ";", ".",   "\\",
                                             "/",  "=", "<", ">", "\n", "\t", " ", "-", "_", "#", "*", "\r\n"};
  std::mt19937 random(7);
  std::set<std::string> made;
  for (int b = 0; b < 256; ++b) made.emplace(1, static_cast<char>(b));
  while (made.size() < size) {
    std::string token;
    const auto kind = random() % 100;
    if (kind < 60) {
      token = (random() % 2 == 0 ? " " : "") + word(random);
      if (random() % 3 == 0 && !token.empty()) token[token[0] == ' ' ? 1 : 0] &= static_cast<char>(~0x20);
    } else if (kind < 72) {
      for (size_t n = 1 + random() % 5; n > 0; --n) token += kPunctuation[random() % std::size(kPunctuation)];
    } else if (kind < 76) {
      token = kPunctuation[random() % std::size(kPunctuation)] + word(random);
    } else if (kind < 78) {
      token = word(random) + kPunctuation[random() % std::size(kPunctuation)];
    } else if (kind < 80) {
      for (size_t n = 1 + random() % 3; n > 0; --n) token += static_cast<char>('0' + random() % 10);
    } else {
      const char32_t base = random() % 3 == 0 ? 0x400 : 0x4e00;
      for (size_t n = 1 + random() % 4; n > 0; --n)
        append_utf8(token, base + static_cast<char32_t>(random() % (base == 0x400 ? 256 : 20000)));
      if (random() % 12 == 0) token.pop_back();  // a part of a character
    }
    made.insert(token);
  }
  return std::make_shared<const Vocabulary>(std::vector<std::string>(made.begin(), made.end()),
                                            std::vector<Vocabulary::Tag>{});
}

int32_t pick(const std::vector<uint32_t>& mask, std::mt19937& random) {
  // A random word to start from, then the next id that is set.
  const size_t words = mask.size(), start = random() % words;
  for (size_t i = 0; i < words; ++i) {
    const size_t at = (start + i) % words;
    uint32_t bits = mask[at];
    if (bits == 0) continue;
    for (int skip = static_cast<int>(random() % static_cast<uint32_t>(__builtin_popcount(bits))); skip > 0; --skip)
      bits &= bits - 1;
    return static_cast<int32_t>(at * 32) + __builtin_ctz(bits);
  }
  return -1;
}

void report(const char* name, std::vector<double>& times, double compile_us) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  std::printf("%-28s %7zu tokens  compile %8.1f ms  median %7.2f us  p99 %8.1f us  largest %8.1f us\n", name,
              times.size(), compile_us / 1000, at(0.5), at(0.99), times.back());
}

}  // namespace

int main(int argc, char** argv) {
  const int texts = argc > 1 ? std::atoi(argv[1]) : 200;
  const auto start = Clock::now();
  const auto v = vocabulary(150'000);
  std::printf("vocabulary: %.0f ms\n", us_since(start) / 1000);
  struct Case {
    const char* name;
    ContentShape shape;
  };
  using Kind = ContentShape::Kind;
  const Case cases[] = {
      {"any JSON object", {.kind = Kind::JsonObject}},
      {"flat schema",
       {.kind = Kind::JsonSchema,
        .source = R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},
        "email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"}},"active":{"type":"boolean"}},
        "required":["name","age","email","tags","active"],"additionalProperties":false})"}},
      {"recursive schema",
       {.kind = Kind::JsonSchema, .source = R"({"$defs":{"n":{"type":"object","properties":{"label":{"type":"string"},
        "children":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["label","children"],"additionalProperties":false}},"$ref":"#/$defs/n"})"}},
      {"strings of bounded length",
       {.kind = Kind::JsonSchema, .source = R"({"type":"object","properties":{"title":{"type":"string","maxLength":80},
        "body":{"type":"string","minLength":20,"maxLength":2000}},"required":["title","body"],"additionalProperties":false})"}},
      {"20 optional properties",
       {.kind = Kind::JsonSchema,
        .source =
            [] {
              std::string s = R"({"type":"object","properties":{)";
              for (int i = 0; i < 20; ++i)
                s += (i != 0 ? "," : "") + ("\"property_" + std::to_string(i)) +
                     R"(":{"type":["string","number","null"]})";
              return s + R"(},"additionalProperties":false})";
            }()}},
      {"regex", {.kind = Kind::Regex, .source = "[A-Z][a-z]+( [A-Za-z0-9,]+){3,40}\\."}},
      {"EBNF arithmetic",
       {.kind = Kind::Ebnf, .source = "root ::= term ([-+*/] term)*\nterm ::= [0-9]+ | \"(\" root \")\""}}};
  for (const Case& c : cases) {
    for (const bool cold : {true, false}) {
      std::vector<double> times;
      std::mt19937 random(11);
      double compile_us = 0;
      std::shared_ptr<Grammar> grammar;
      for (int text = 0; text < texts; ++text) {
        if (cold || grammar == nullptr) {
          const auto began = Clock::now();
          auto made = plumb::grammar::compile({.content = c.shape}, v, 20'000);
          if (!made) {
            std::printf("%s: %s\n", c.name, made.error().to_string().c_str());
            return 1;
          }
          grammar = *made;
          compile_us = std::max(compile_us, us_since(began));
        }
        Cursor cursor(grammar);
        std::vector<uint32_t> mask(v->words());
        Cursor::Next next = cursor.next({}, mask);
        for (int i = 0; i < 200 && next.possible; ++i) {
          const int32_t id = pick(mask, random);
          const auto began = Clock::now();
          cursor.accept(id);
          next = cursor.next({}, mask);
          times.push_back(us_since(began));
        }
        if (cold && text >= 20) break;
      }
      report((std::string(c.name) + (cold ? ", cold" : "")).c_str(), times, compile_us);
    }
  }
  return 0;
}

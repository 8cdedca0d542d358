// A schema, pattern or grammar from a request: it is refused or compiled, and what its mask allows may follow.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "grammar/compile.h"

namespace {

using plumb::grammar::ContentShape;
using plumb::grammar::Vocabulary;

const std::shared_ptr<const Vocabulary>& vocabulary() {
  static const std::shared_ptr<const Vocabulary> one = [] {
    std::vector<std::string> bytes;
    bytes.reserve(256 + 7);
    for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
    for (const char* token : {"\":", "{\"", "the", "true", "é", "]}", "12"}) bytes.emplace_back(token);
    return std::make_shared<const Vocabulary>(std::move(bytes), std::vector<Vocabulary::Tag>{});
  }();
  return one;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 4096) return 0;
  using Kind = ContentShape::Kind;
  const Kind kind = data[0] % 3 == 0 ? Kind::JsonSchema : data[0] % 3 == 1 ? Kind::Regex : Kind::Ebnf;
  const std::string source(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto grammar = plumb::grammar::compile({.content = {.kind = kind, .source = source}}, vocabulary(), 0);
  if (!grammar) return 0;
  plumb::grammar::Cursor cursor(*grammar);
  std::vector<uint32_t> mask(vocabulary()->words());
  for (size_t i = 0; i < 40 && cursor.next({}, mask).possible; ++i) {
    // The first allowed id from a place that the input chooses.
    const auto count = static_cast<size_t>(vocabulary()->size());
    size_t id = data[i % size] * size_t{7};
    while ((mask[id % count / 32] >> (id % count % 32) & 1u) == 0) ++id;
    PLUMB_CHECK(cursor.accept(static_cast<int32_t>(id % count)), "a mask allows what may not follow");
  }
  return 0;
}

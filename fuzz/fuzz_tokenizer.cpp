// tokenizer.json from anywhere, then text through it. Input: the file, a zero byte, the text; without a zero byte the
// whole input is text for a small tokenizer of our own, so that encoding is reached at once.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/byte_alphabet.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace {

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string small_tokenizer() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte)
    vocab += json_string(plumb::bytes_to_alphabet(std::string(1, static_cast<char>(byte)))) + ":" +
             std::to_string(byte) + ",";
  return R"({"model":{"type":"BPE","vocab":{)" + vocab +
         R"("aa":256,"aaaa":257,"ab":258},"merges":["a a","aa aa",["a","b"]]},"decoder":{"type":"ByteLevel"},)"
         R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":)"
         R"("(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},)"
         R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)"
         R"("added_tokens":[{"id":259,"content":"<|user|>","special":true},)"
         R"({"id":260,"content":"<think>","lstrip":true,"rstrip":true},{"id":261,"content":"word","single_word":true}]})";
}

void use(const plumb::Tokenizer& tokenizer, std::string_view text) {
  const plumb::Span middle[] = {{text.size() / 3, text.size() / 2}};
  const auto ids = tokenizer.encode(text, {.untrusted = middle});
  if (!ids) return;
  // Piece by piece is the same as at once.
  plumb::Detokenizer stream(tokenizer, false);
  std::string joined;
  for (const int32_t id : *ids) joined += stream.push(id);
  joined += stream.flush();
  if (joined != tokenizer.decode(*ids, false)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  if (zero == std::string_view::npos) {
    static const auto tokenizer = plumb::Tokenizer::parse(small_tokenizer(), "");
    if (!tokenizer) std::abort();
    use(*tokenizer, input);
    return 0;
  }
  const auto tokenizer = plumb::Tokenizer::parse(input.substr(0, zero), "");
  if (tokenizer) use(*tokenizer, input.substr(zero + 1));
  return 0;
}

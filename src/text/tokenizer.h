// Text to token ids and back, exactly as Hugging Face's tokenizers do it (model.md section 5). Immutable after load;
// every const member may be called from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/span.h"

namespace plumb {

struct EncodeOptions {
  bool match_added_tokens = true;  // false: "<|user|>" is text like any other
  // Also add what the model's own files put around every text (TemplateProcessing, add_bos_token). Off for chat,
  // whose template writes the prefix itself; GLM's files add nothing.
  bool add_special_tokens = false;
  // Sorted, disjoint byte ranges whose text can't be trusted: no special token and no think, tool or argument tag is
  // recognised where it would touch one of them (api.md 66). Other added tokens, such as /nothink, still are.
  std::span<const Span> untrusted{};
};

class Tokenizer {
 public:
  // Reads tokenizer.json, and tokenizer_config.json if there is one, from a model's folder.
  static Result<Tokenizer> load(const std::filesystem::path& model_dir);
  // `tokenizer_config_json` may be empty.
  static Result<Tokenizer> parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Bytes that are not UTF-8 are read as U+FFFD (the original takes only valid text). Fails only when the model's own
  // pattern explodes on the text.
  Result<std::vector<int32_t>> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // The bytes of all tokens joined, then invalid UTF-8 replaced. Ids that the vocabulary lacks give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // Raw bytes of one token, possibly a part of a character; empty for unknown ids. Valid as long as the tokenizer.
  std::string_view token_bytes(int32_t id) const;
  // The token as the files write it: byte alphabet ("Ġthe") or an added token's text; empty for unknown ids.
  std::string_view token_text(int32_t id) const;
  std::optional<int32_t> token_id(std::string_view token_text) const;
  bool is_special(int32_t id) const;  // dropped by skip_special
  bool is_added(int32_t id) const;
  bool knows(int32_t id) const;
  // Largest id + 1. A model's vocab_size may be larger (padding).
  int32_t vocab_size() const;
  std::optional<int32_t> bos_id() const;  // from tokenizer_config.json
  std::optional<int32_t> eos_id() const;

 private:
  struct Data;
  explicit Tokenizer(std::unique_ptr<const Data> data);
  friend class TokenizerParser;
  std::unique_ptr<const Data> data_;
};

}  // namespace plumb

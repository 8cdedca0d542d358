// What a loaded tokenizer consists of; shared by its parser and its users.
#pragma once

#include <memory>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"

namespace plumb {

struct Tokenizer::Data {
  struct Token {
    std::string text{};
    std::string bytes{};
    bool present = false;
    bool special = false;
    bool added = false;
  };
  std::vector<Token> tokens{};  // by id
  IdByText ids{};               // token text -> id
  Normalizer normalizer{};
  PreTokenizer pre_tokenizer{};
  std::unique_ptr<const Bpe> bpe{};
  AddedTokenMatcher raw_matcher{};         // in the text as given
  AddedTokenMatcher normalized_matcher{};  // in the normalised text
  std::vector<int32_t> prefix{};           // with EncodeOptions::add_special_tokens
  std::vector<int32_t> suffix{};
  std::optional<int32_t> bos{};
  std::optional<int32_t> eos{};
};

}  // namespace plumb

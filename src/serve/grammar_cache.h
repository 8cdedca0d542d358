// Grammars by what they ask for: requests repeat their schemas, and a grammar that has been used knows its masks.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/result.h"
#include "grammar/compile.h"

namespace plumb {

class Tokenizer;

class GrammarCache {
 public:
  // `vocab_size`: ids that the model may draw.
  GrammarCache(const Tokenizer& tokenizer, int vocab_size) : tokenizer_(tokenizer), vocab_size_(vocab_size) {}

  // Any thread. Errors as grammar::compile.
  Result<std::shared_ptr<grammar::Grammar>> get(const grammar::OutputShape& shape);

 private:
  const std::shared_ptr<const grammar::Vocabulary>& vocabulary();

  using Entry = std::pair<std::string, std::shared_ptr<grammar::Grammar>>;
  const Tokenizer& tokenizer_;
  const int vocab_size_;
  std::once_flag made_{};
  std::shared_ptr<const grammar::Vocabulary> vocabulary_{};  // made when the first request needs it
  std::mutex mutex_{};
  std::list<Entry> entries_{};  // last used first
  std::unordered_map<std::string, std::list<Entry>::iterator> index_{};
};

}  // namespace plumb

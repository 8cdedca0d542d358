#include "serve/grammar_cache.h"

#include <vector>

#include "text/tokenizer.h"

namespace plumb {

namespace {

constexpr size_t kMaxEntries = 64;
constexpr int64_t kWarmUs = 20'000;
constexpr const char* kTags[] = {"<think>",   "</think>",   "<tool_call>", "</tool_call>",
                                 "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};

std::string key_of(const grammar::OutputShape& shape) {
  std::string key;
  const auto add = [&key](std::string_view part) { key.append(std::to_string(part.size())).append(":").append(part); };
  for (const int number :
       {static_cast<int>(shape.reasoning), static_cast<int>(shape.content.kind), static_cast<int>(shape.calls_required),
        static_cast<int>(shape.calls_amid_text), static_cast<int>(shape.one_call)}) {
    key += static_cast<char>('0' + number);
  }
  add(shape.content.source);
  for (const std::string& one : shape.content.choices) add(one);
  key += '|';
  for (const grammar::ToolShape& tool : shape.tools) {
    add(tool.name);
    add(tool.parameters_json);
    key += tool.any_arguments ? '*' : '.';
  }
  return key;
}

}  // namespace

const std::shared_ptr<const grammar::Vocabulary>& GrammarCache::vocabulary() {
  std::call_once(made_, [this] {
    std::vector<grammar::Vocabulary::Tag> tags;
    for (const char* name : kTags) {
      if (const std::optional<int32_t> id = tokenizer_.token_id(name); id && *id < vocab_size_)
        tags.push_back({name, *id});
    }
    std::vector<std::string> bytes(static_cast<size_t>(vocab_size_));
    for (int32_t id = 0; id < vocab_size_; ++id) {
      // Control tokens and tags are no text, whatever they look like.
      if (!tokenizer_.is_added(id)) bytes[static_cast<size_t>(id)] = tokenizer_.token_bytes(id);
    }
    vocabulary_ = std::make_shared<const grammar::Vocabulary>(std::move(bytes), std::move(tags));
  });
  return vocabulary_;
}

Result<std::shared_ptr<grammar::Grammar>> GrammarCache::get(const grammar::OutputShape& shape) {
  std::string key = key_of(shape);
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = index_.find(key); it != index_.end()) {
      entries_.splice(entries_.begin(), entries_, it->second);
      return it->second->second;
    }
  }
  // Two requests with a new schema at once compile it twice; the first in the list stays.
  PLUMB_TRY(std::shared_ptr<grammar::Grammar> made, grammar::compile(shape, vocabulary(), kWarmUs));
  const std::lock_guard lock(mutex_);
  if (const auto it = index_.find(key); it != index_.end()) return it->second->second;
  entries_.emplace_front(key, made);
  index_.emplace(std::move(key), entries_.begin());
  if (entries_.size() > kMaxEntries) {
    index_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return made;
}

}  // namespace plumb

#include "serve/markup_parser.h"

#include <algorithm>

#include "serve/strict_json.h"

namespace plumb {

namespace {

constexpr std::string_view kTexts[kMarkupTags] = {"<think>",   "</think>",   "<tool_call>", "</tool_call>",
                                                  "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};

// Bytes at the end of `text` that could be the beginning of `tag`.
size_t open_suffix(std::string_view text, std::string_view tag) {
  for (size_t size = std::min(text.size(), tag.size() - 1); size > 0; --size)
    if (text.ends_with(tag.substr(0, size))) return size;
  return 0;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

// The inside of a JSON string.
std::string escaped(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out.substr(1, out.size() - 2);
}

}  // namespace

std::string_view tag_text(MarkupTag tag) { return kTexts[static_cast<size_t>(tag)]; }

MarkupParser::MarkupParser(Options options)
    : options_(std::move(options)),
      state_(options_.start == ReasoningStart::Off           ? State::Content
             : options_.start == ReasoningStart::InReasoning ? State::Reasoning
                                                             : State::Start) {}

MarkupPiece MarkupParser::push(std::string_view text) {
  MarkupPiece out;
  held_ += text;
  process(/*at_end=*/false, out);
  return out;
}

MarkupPiece MarkupParser::tag(MarkupTag which) {
  MarkupPiece out;
  const bool opens = which == MarkupTag::Think && state_ == State::Start && held_.empty();
  if (!opens) process(/*at_end=*/true, out);
  if (opens) {
    state_ = State::Reasoning;
  } else {
    take_tag(which, /*token=*/true, out);
  }
  fresh_ = false;
  return out;
}

MarkupPiece MarkupParser::flush(bool cut) {
  MarkupPiece out;
  process(/*at_end=*/true, out);
  if (!in_call()) return out;
  const bool whole = announced_ && state_ == State::Between;  // only </tool_call> is missing
  if (whole && !cut) {
    end_call(out);
  } else if (!cut) {
    give_up(out);
  }
  return out;
}

// Which spelled tags mean something where the text stands; the others are text.
bool MarkupParser::relevant(MarkupTag which) const {
  switch (state_) {
    case State::Start:
      return false;
    case State::Reasoning:
      return which == MarkupTag::EndThink || which == MarkupTag::Call;
    case State::Content:
      return which == MarkupTag::Call && options_.tools != nullptr;
    case State::Value:
      return which == MarkupTag::EndValue && options_.values_end_by_text;
    default:
      return which != MarkupTag::Think && which != MarkupTag::EndThink;
  }
}

// Whether the text begins with the reasoning's tag; false when more must come before that can be said.
bool MarkupParser::begin_text(bool at_end) {
  const std::string_view begin = tag_text(MarkupTag::Think);
  const std::string_view head = std::string_view(held_).substr(0, begin.size());
  const bool may_open = options_.start != ReasoningStart::Off;
  if (may_open && !at_end && head.size() < begin.size() && begin.starts_with(head)) return false;
  if (may_open && head == begin) {
    held_.erase(0, begin.size());
    state_ = State::Reasoning;
  }
  fresh_ = false;
  if (state_ == State::Start) state_ = State::Content;
  return true;
}

// The first tag of the held text that counts now.
MarkupParser::FoundTag MarkupParser::first_tag() const {
  FoundTag found;
  for (int i = 0; i < kMarkupTags; ++i) {
    const auto tag = static_cast<MarkupTag>(i);
    if (!relevant(tag)) continue;
    if (const size_t at = held_.find(tag_text(tag)); at < found.at) {
      found.at = at;
      found.which = tag;
    }
    found.open_end = std::max(found.open_end, open_suffix(held_, tag_text(tag)));
  }
  return found;
}

void MarkupParser::process(bool at_end, MarkupPiece& out) {
  if ((fresh_ || state_ == State::Start) && !begin_text(at_end)) return;
  while (!held_.empty()) {
    const FoundTag tag = first_tag();
    const bool none = tag.at == std::string::npos;
    const size_t size = !none ? tag.at : held_.size() - (at_end ? 0 : tag.open_end);
    const std::string text = held_.substr(0, size);
    held_.erase(0, none ? size : size + tag_text(tag.which).size());
    const State before = state_;
    take_text(text, out);
    if (!none) {
      take_tag(tag.which, /*token=*/false, out);
    } else if (state_ == before) {  // else other tags count now
      return;
    }
  }
}

void MarkupParser::take_text(std::string_view text, MarkupPiece& out) {
  if (text.empty()) return;
  switch (state_) {
    case State::Start:
    case State::Content:
      out.content += text;
      return;
    case State::Reasoning:
      out.reasoning += text;
      return;
    case State::Name:
      raw_ += text;
      name_ += text;
      return;
    case State::Key:
      raw_ += text;
      key_ += text;
      return;
    case State::Value:
      if (text_value_) return add_arguments(escaped(text), out);
      value_ += text;
      return;
    case State::Between:
    case State::AfterKey:
      raw_ += text;
      if (!trimmed(text).empty()) give_up(out);
      return;
  }
}

void MarkupParser::take_tag(MarkupTag which, bool token, MarkupPiece& out) {
  if (state_ == State::Start) state_ = State::Content;
  if (state_ == State::Reasoning && which == MarkupTag::Call)
    state_ = State::Content;  // it ends the reasoning by itself
  if (state_ == State::Reasoning) {
    if (which == MarkupTag::EndThink) {
      state_ = State::Content;
    } else if (which != MarkupTag::Think || !options_.drop_think_tags) {
      out.reasoning += tag_text(which);
    }
    return;
  }
  if (state_ == State::Content) {
    const bool thinks = which == MarkupTag::Think || which == MarkupTag::EndThink;
    if (which == MarkupTag::Call && options_.tools != nullptr) return begin_call();
    if (!(thinks && token && options_.drop_think_tags)) out.content += tag_text(which);
    return;
  }
  if (state_ == State::Value && which != MarkupTag::EndValue) return take_text(tag_text(which), out);
  raw_ += tag_text(which);
  take_tag_of_call(which, out);
}

void MarkupParser::take_tag_of_call(MarkupTag which, MarkupPiece& out) {
  if (state_ == State::Name && (which == MarkupTag::Key || which == MarkupTag::EndCall)) {
    name_ = trimmed(name_);
    if (!options_.tools->knows(name_)) return give_up(out);
    state_ = State::Between;
  }
  switch (state_) {
    case State::Between:
      if (which == MarkupTag::EndCall) return end_call(out);
      if (which != MarkupTag::Key) break;
      key_.clear();
      state_ = State::Key;
      return;
    case State::Key:
      if (which != MarkupTag::EndKey) break;
      state_ = State::AfterKey;
      return;
    case State::AfterKey:
      if (which != MarkupTag::Value) break;
      return begin_value(out);
    case State::Value:
      return end_value(out);
    default:
      break;
  }
  const bool again = which == MarkupTag::Call;
  if (again) raw_.resize(raw_.size() - tag_text(which).size());
  give_up(out);
  if (again) begin_call();
}

void MarkupParser::begin_call() {
  state_ = State::Name;
  raw_ = tag_text(MarkupTag::Call);
  name_.clear();
  keys_.clear();
  announced_ = false;
}

// The call is certain: from here on it is sent as it comes.
void MarkupParser::announce(MarkupPiece& out) {
  raw_.clear();
  if (announced_) return;
  announced_ = true;
  out.calls.push_back({.index = next_index_++, .name = name_});
}

void MarkupParser::begin_value(MarkupPiece& out) {
  key_ = trimmed(key_);
  if (key_.empty() || std::ranges::find(keys_, key_) != keys_.end()) return give_up(out);
  announce(out);
  add_arguments((keys_.empty() ? "{\"" : ",\"") + escaped(key_) + "\":", out);
  keys_.push_back(key_);
  state_ = State::Value;
  value_.clear();
  text_value_ = options_.tools->is_text(name_, key_);
  if (text_value_) add_arguments("\"", out);
}

void MarkupParser::end_value(MarkupPiece& out) {
  add_arguments(text_value_ ? "\"" : options_.tools->value_json(name_, key_, value_), out);
  raw_.clear();  // the closing tag went with the value
  state_ = State::Between;
}

void MarkupParser::end_call(MarkupPiece& out) {
  announce(out);
  add_arguments(keys_.empty() ? "{}" : "}", out);
  state_ = State::Content;
}

// No call after all: what has not been sent as one is content.
void MarkupParser::give_up(MarkupPiece& out) {
  malformed_ = true;
  if (state_ == State::Value) end_value(out);
  if (announced_) add_arguments("}", out);
  out.content += raw_;
  raw_.clear();
  state_ = State::Content;
}

void MarkupParser::add_arguments(std::string_view json, MarkupPiece& out) {
  const int index = next_index_ - 1;
  if (out.calls.empty() || out.calls.back().index != index || !out.calls.back().name.empty()) {
    out.calls.push_back({.index = index});
  }
  out.calls.back().arguments += json;
}

}  // namespace plumb

#include "serve/generate_writer.h"
#include "serve/strict_json.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace plumb {

namespace {

using Json = nlohmann::ordered_json;

Json triple(const TokenLogprob& token, const Tokenizer& tokenizer) {
  return Json::array(
      {std::clamp(token.logprob, -9999.0f, 0.0f), token.id, std::string(tokenizer.token_bytes(token.id))});
}

// [[logprob, id, text], ...], and the best ones beside each.
void add_logprobs(const std::vector<LogprobEntry>& entries, const char* prefix, int top, bool first_is_null,
                  const Tokenizer& tokenizer, Json& meta) {
  Json tokens = Json::array(), best = Json::array();
  for (size_t i = 0; i < entries.size(); ++i) {
    tokens.push_back(triple(entries[i].token, tokenizer));
    if (first_is_null && i == 0) tokens.back()[0] = nullptr;
    Json list = Json::array();
    for (size_t k = 0; k < std::min(entries[i].top.size(), static_cast<size_t>(top)); ++k)
      list.push_back(triple(entries[i].top[k], tokenizer));
    best.push_back(first_is_null && i == 0 ? Json(nullptr) : std::move(list));
  }
  meta[std::string(prefix) + "_token_logprobs"] = std::move(tokens);
  if (top > 0) meta[std::string(prefix) + "_top_logprobs"] = std::move(best);
}

}  // namespace

WholeChoice& GenerateWriter::choice_of(int index) {
  while (std::ssize(choices_) <= index)
    choices_.push_back({.index = static_cast<int>(choices_.size()), .end = {.finish_reason = ""}});
  return choices_[static_cast<size_t>(index)];
}

std::string GenerateWriter::object(const WholeChoice& choice, const UsageFacts* usage) const {
  Json reason = nullptr;
  if (choice.end.finish_reason == "length") reason = {{"type", "length"}};
  if (choice.end.finish_reason == "stop") {
    reason = {{"type", "stop"}};
    const Json matched = Json::parse(choice.end.stop_reason_json, nullptr, false);
    if (!matched.is_null()) reason["matched"] = matched;
  }
  Json meta = {{"id", facts_.id}, {"finish_reason", std::move(reason)}, {"prompt_tokens", facts_.prompt_tokens}};
  if (usage != nullptr) {
    meta["prompt_tokens"] = usage->prompt_tokens;
    meta["completion_tokens"] = usage->completion_tokens;
    meta["cached_tokens"] = usage->cached_tokens;
  }
  if (facts_.logprobs) {
    add_logprobs(choice.text.logprobs, "output", facts_.top_logprobs, false, *facts_.tokenizer, meta);
    if (!choice.prompt_logprobs.empty())
      add_logprobs(choice.prompt_logprobs, "input", facts_.top_logprobs, true, *facts_.tokenizer, meta);
  }
  Json out = {{"text", choice.text.content}};
  if (facts_.token_ids) out["output_ids"] = choice.text.token_ids;
  if (choices_.size() > 1) out["index"] = choice.index;
  out["meta_info"] = std::move(meta);
  return printed(out);
}

std::string GenerateWriter::begin(int index) {
  choice_of(index);
  return {};
}

std::string GenerateWriter::delta(int index, const ChoiceDelta& delta, int64_t&) {
  WholeChoice& choice = choice_of(index);
  choice.text.content += delta.content;
  choice.text.logprobs.insert(choice.text.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
  choice.text.token_ids.insert(choice.text.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  return "data: " + object(choice, nullptr) + "\n\n";
}

// The last object of a choice tells the usage, which is known when all have ended.
std::string GenerateWriter::end(int index, const ChoiceEnd& end) {
  choice_of(index).end = end;
  return {};
}

std::string GenerateWriter::finish(const UsageFacts& usage) {
  std::string out;
  for (const WholeChoice& choice : choices_) out += "data: " + object(choice, &usage) + "\n\n";
  return out + "data: [DONE]\n\n";
}

std::string GenerateWriter::failed(const ApiError& error) { return "data: " + error_json(error) + "\n\n"; }

std::string GenerateWriter::whole(const std::vector<WholeChoice>& choices, const UsageFacts& usage) {
  if (choices.size() == 1) return object(choices.front(), &usage);
  std::string out = "[";
  for (const WholeChoice& choice : choices) out += (out.size() > 1 ? "," : "") + object(choice, &usage);
  return out + ']';
}

}  // namespace plumb

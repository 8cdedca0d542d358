#include "serve/choice_text.h"

namespace plumb {

ChoiceText::ChoiceText(ChoiceTextOptions options)
    : options_(std::move(options)),
      detokenizer_(*options_.tokenizer, options_.skip_special),
      reasoning_(options_.reasoning),
      content_stops_(options_.stop, options_.include_stop),
      reasoning_stops_(options_.stop_in_reasoning ? options_.stop : std::vector<std::string>{}, options_.include_stop) {
}

ReasoningParser::Tag ChoiceText::tag_of(int32_t id) const {
  if (!options_.drop_tags || id < 0) return ReasoningParser::Tag::None;
  if (id == options_.tags.begin_id) return ReasoningParser::Tag::Begin;
  if (id == options_.tags.end_id) return ReasoningParser::Tag::End;
  return ReasoningParser::Tag::None;
}

bool ChoiceText::push(const TokenEvent& event, ChoiceDelta& out) {
  ++tokens_;
  if (options_.keep_token_ids) out.token_ids.push_back(event.id);
  const bool was_reasoning = reasoning_.in_reasoning();
  if (was_reasoning) ++reasoning_tokens_;
  const ReasoningParser::Tag tag = tag_of(event.id);
  if (tag != ReasoningParser::Tag::None) {
    pass(reasoning_.push(detokenizer_.flush()), out);  // a character left open before the tag
    pass(reasoning_.tag(tag), out);
    return !stopped_by();
  }
  const size_t begin = content_in_;
  const std::string text = detokenizer_.push(event.id);
  const ReasoningParser::Piece piece = text.empty() ? ReasoningParser::Piece{} : reasoning_.push(text);
  const bool visible = !was_reasoning || !piece.content.empty();
  if (visible && !reasoning_.in_reasoning()) waiting_.push_back({begin, {event.logprob, event.top}});
  if (reasoning_.in_reasoning()) waiting_.clear();
  pass(piece, out);
  release(/*all=*/false, out);
  return !stopped_by();
}

void ChoiceText::pass(const ReasoningParser::Piece& piece, ChoiceDelta& out) {
  if (!piece.reasoning.empty()) {
    out.reasoning += options_.stop_in_reasoning ? reasoning_stops_.push(piece.reasoning) : piece.reasoning;
  }
  if (reasoning_stops_.match() || piece.content.empty()) return;
  if (options_.stop_in_reasoning) out.reasoning += reasoning_stops_.flush();
  content_in_ += piece.content.size();
  const bool too_early = tokens_ < options_.min_tokens;
  show(too_early ? piece.content : content_stops_.push(piece.content), out);
}

void ChoiceText::show(std::string_view content, ChoiceDelta& out) {
  content_out_ += content.size();
  out.content += content;
}

void ChoiceText::release(bool all, ChoiceDelta& out) {
  while (!waiting_.empty() && (all || waiting_.front().begin < content_out_)) {
    out.logprobs.push_back(std::move(waiting_.front().entry));
    waiting_.pop_front();
  }
}

void ChoiceText::end(ChoiceDelta& out) {
  if (!stopped_by()) {
    pass(reasoning_.push(detokenizer_.flush()), out);
    pass(reasoning_.flush(), out);
  }
  out.reasoning += reasoning_stops_.flush();
  show(content_stops_.flush(), out);
  release(/*all=*/!stopped_by(), out);
}

std::optional<std::string> ChoiceText::stopped_by() const {
  const auto& match = content_stops_.match() ? content_stops_.match() : reasoning_stops_.match();
  if (!match) return std::nullopt;
  return options_.stop[match->stop_index];
}

}  // namespace plumb

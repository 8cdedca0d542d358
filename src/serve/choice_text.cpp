#include "serve/choice_text.h"

#include <algorithm>

namespace plumb {

ChoiceText::ChoiceText(ChoiceTextOptions options)
    : options_(std::move(options)),
      detokenizer_(*options_.tokenizer, options_.skip_special),
      markup_({.start = options_.reasoning,
               .drop_think_tags = options_.drop_tags,
               .tools = options_.tools,
               .values_end_by_text = options_.tags[MarkupTag::EndValue] < 0}),
      content_stops_(options_.stop, options_.include_stop),
      reasoning_stops_(options_.stop_in_reasoning ? options_.stop : std::vector<std::string>{}, options_.include_stop) {
}

std::optional<MarkupTag> ChoiceText::tag_of(int32_t id) const {
  if (!options_.markup || id < 0) return std::nullopt;
  const auto it = std::ranges::find(options_.tags.ids, id);
  if (it == options_.tags.ids.end()) return std::nullopt;
  return static_cast<MarkupTag>(it - options_.tags.ids.begin());
}

bool ChoiceText::push(const TokenEvent& event, ChoiceDelta& out) {
  ++tokens_;
  if (options_.keep_token_ids) out.token_ids.push_back(event.id);
  const bool was_hidden = hidden();
  if (markup_.in_reasoning()) ++reasoning_tokens_;
  const size_t begin = content_in_;
  MarkupPiece piece;
  if (const std::optional<MarkupTag> tag = tag_of(event.id); tag) {
    pass(markup_.push(detokenizer_.flush()), out);  // a character left open before the tag
    piece = markup_.tag(*tag);
    if (!piece.content.empty()) waiting_.push_back({begin, {event.logprob, event.top}});
  } else {
    const std::string text = detokenizer_.push(event.id);
    if (!text.empty()) piece = markup_.push(text);
    const bool visible = !was_hidden || !piece.content.empty();
    if (visible && !hidden()) waiting_.push_back({begin, {event.logprob, event.top}});
  }
  // Tokens that spelled a tag were no content after all.
  if (hidden())
    std::erase_if(waiting_, [&](const Waiting& w) { return w.begin >= content_in_ + piece.content.size(); });
  pass(std::move(piece), out);
  release(/*all=*/false, out);
  return !stopped_by() && !(options_.one_call && markup_.calls() > 0 && !markup_.in_call());
}

void ChoiceText::pass(MarkupPiece piece, ChoiceDelta& out) {
  if (!piece.reasoning.empty()) {
    out.reasoning += options_.stop_in_reasoning ? reasoning_stops_.push(piece.reasoning) : piece.reasoning;
  }
  if (stopped_by()) return;
  for (CallDelta& call : piece.calls) {
    const bool more = !out.calls.empty() && out.calls.back().index == call.index && call.name.empty() &&
                      out.calls.back().name.empty();
    if (more) {
      out.calls.back().arguments += call.arguments;
    } else {
      out.calls.push_back(std::move(call));
    }
  }
  if (piece.content.empty()) return;
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

void ChoiceText::end(bool cut, ChoiceDelta& out) {
  if (!stopped_by()) {
    pass(markup_.push(detokenizer_.flush()), out);
    pass(markup_.flush(cut), out);
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

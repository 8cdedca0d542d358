#include "text/tokenizer.h"

#include "text/tokenizer_data.h"
#include "text/unicode.h"

namespace plumb {

Tokenizer::Tokenizer(std::unique_ptr<const Data> data) : data_(std::move(data)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

namespace {

// Text made valid, with the spans moved to where their bytes went.
struct Cleaned {
  std::string text{};
  std::vector<Span> spans{};
};

Cleaned clean(std::string_view text, std::span<const Span> spans) {
  Cleaned out;
  std::vector<size_t> moved(text.size() + 1);  // old byte -> new byte
  for (size_t i = 0; i < text.size();) {
    const utf8::Decoded d = utf8::decode(text, i);
    for (size_t j = 0; j < d.length; ++j) moved[i + j] = out.text.size() + (d.valid ? j : 0);
    utf8::append(out.text, d.code_point);
    i += d.length;
  }
  moved[text.size()] = out.text.size();
  for (const Span& span : spans) {
    const size_t begin = std::min(span.begin, text.size());
    out.spans.push_back({moved[begin], moved[std::clamp(span.end, begin, text.size())]});
  }
  return out;
}

// The spans that touch [begin, end), relative to begin.
std::vector<Span> within(std::span<const Span> spans, Span part) {
  std::vector<Span> out;
  auto it = std::partition_point(spans.begin(), spans.end(), [&](const Span& s) { return s.end <= part.begin; });
  for (; it != spans.end() && it->begin < part.end; ++it)
    out.push_back({std::max(it->begin, part.begin) - part.begin, std::min(it->end, part.end) - part.begin});
  return out;
}

}  // namespace

class Encoder {
 public:
  Encoder(const PreTokenizer& pre_tokenizer, const Bpe& bpe) : pre_tokenizer_(pre_tokenizer), bpe_(bpe) {}
  Status text(std::string_view part) {
    PLUMB_TRY(const std::vector<std::string> pieces, pre_tokenizer_.split(part));
    for (const std::string& piece : pieces) bpe_.encode(piece, ids);
    return {};
  }
  std::vector<int32_t> ids{};

 private:
  const PreTokenizer& pre_tokenizer_;
  const Bpe& bpe_;
};

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (!utf8::valid(text)) {
    const Cleaned cleaned = clean(text, options.untrusted);
    EncodeOptions again = options;
    again.untrusted = cleaned.spans;
    return encode(cleaned.text, again);
  }
  const Data& d = *data_;
  Encoder encoder(d.pre_tokenizer, *d.bpe);
  const auto cut = [&](const AddedTokenMatcher& matcher, std::string_view whole, std::span<const Span> untrusted) {
    if (options.match_added_tokens && !matcher.empty()) return matcher.split(whole, untrusted);
    return std::vector<AddedTokenMatcher::Piece>{{-1, {0, whole.size()}}};
  };
  if (options.add_special_tokens) encoder.ids = d.prefix;
  for (const auto& outer : cut(d.raw_matcher, text, options.untrusted)) {
    if (outer.id >= 0) {
      encoder.ids.push_back(outer.id);
      continue;
    }
    const std::string_view raw = text.substr(outer.span.begin, outer.span.end - outer.span.begin);
    std::vector<Span> untrusted = within(options.untrusted, outer.span);
    std::string normalized;
    if (!d.normalizer.empty()) {
      normalized = d.normalizer.apply(raw);
      // Bytes move; rather than follow each, distrust the whole part.
      if (!untrusted.empty()) untrusted = {{0, normalized.size()}};
    }
    const std::string_view part = d.normalizer.empty() ? raw : std::string_view(normalized);
    for (const auto& inner : cut(d.normalized_matcher, part, untrusted)) {
      if (inner.id >= 0) {
        encoder.ids.push_back(inner.id);
      } else if (inner.span.end > inner.span.begin) {
        PLUMB_TRY_STATUS(encoder.text(part.substr(inner.span.begin, inner.span.end - inner.span.begin)));
      }
    }
  }
  if (options.add_special_tokens) encoder.ids.insert(encoder.ids.end(), d.suffix.begin(), d.suffix.end());
  return std::move(encoder.ids);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids)
    if (!(skip_special && is_special(id))) bytes += token_bytes(id);
  return utf8::replace_invalid(bytes);
}

bool Tokenizer::knows(int32_t id) const { return id >= 0 && id < vocab_size() && data_->tokens[id].present; }
std::string_view Tokenizer::token_bytes(int32_t id) const {
  return knows(id) ? std::string_view(data_->tokens[id].bytes) : std::string_view();
}
std::string_view Tokenizer::token_text(int32_t id) const {
  return knows(id) ? std::string_view(data_->tokens[id].text) : std::string_view();
}
std::optional<int32_t> Tokenizer::token_id(std::string_view text) const {
  const auto it = data_->ids.find(text);
  if (it == data_->ids.end()) return std::nullopt;
  return it->second;
}
bool Tokenizer::is_special(int32_t id) const { return knows(id) && data_->tokens[id].special; }
bool Tokenizer::is_added(int32_t id) const { return knows(id) && data_->tokens[id].added; }
int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(data_->tokens.size()); }
std::optional<int32_t> Tokenizer::bos_id() const { return data_->bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return data_->eos; }

}  // namespace plumb

// Reads tokenizer.json strictly: a component that would change ids and is not implemented is refused by its name.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/byte_alphabet.h"
#include "text/files.h"
#include "text/tokenizer.h"
#include "text/tokenizer_data.h"
#include "text/unicode.h"

namespace plumb {
namespace {

using Json = nlohmann::json;

Error corrupt(std::string what) { return {Code::Corrupt, "tokenizer.json: " + std::move(what), {}, {}}; }
Error unsupported(std::string what) {
  return {Code::Unsupported, "tokenizer.json: " + std::move(what), "token ids would differ from the original's", {}};
}
std::string shown(const Json& node) {
  return utf8::replace_invalid(node.dump(-1, ' ', false, Json::error_handler_t::replace)).substr(0, 200);
}

const Json& member(const Json& object, const char* key) {
  static const Json kNull;
  const auto it = object.find(key);
  return it == object.end() ? kNull : *it;
}

Result<int32_t> token_id_of(const Json& value, std::string_view token, int64_t limit) {
  const int64_t id = value.is_number_integer() ? value.get<int64_t>() : -1;
  if (id < 0 || id > limit) return corrupt(fmt::format("token '{}' has the id {}", token, shown(value)));
  return static_cast<int32_t>(id);
}

Result<bool> bool_member(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (value.is_null()) return false;
  if (!value.is_boolean()) return corrupt(fmt::format("'{}' is {}, expected true or false", key, shown(value)));
  return value.get<bool>();
}

// tokenizer_config.json writes a token as its text or as an object with the text in 'content'.
std::string token_content(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  const Json& content = value.is_object() ? member(value, "content") : value;
  return content.is_string() ? content.get<std::string>() : std::string();
}

}  // namespace

class TokenizerParser {
 public:
  Result<Tokenizer> run(const Json& file, const Json& config) {
    if (!file.is_object()) return corrupt("not a JSON object");
    for (const char* key : {"truncation", "padding"})
      if (!member(file, key).is_null()) return unsupported(fmt::format("'{}' is {}", key, shown(member(file, key))));
    const Json& model = member(file, "model");
    if (!model.is_object()) return corrupt("'model' is missing");
    PLUMB_TRY_STATUS(model_options(model));
    PLUMB_TRY_STATUS(vocabulary(member(model, "vocab")));
    PLUMB_TRY_STATUS(merges(member(model, "merges")));
    PLUMB_TRY(data_->normalizer, Normalizer::parse(member(file, "normalizer")));
    PLUMB_TRY(data_->pre_tokenizer, PreTokenizer::parse(member(file, "pre_tokenizer")));
    PLUMB_TRY_STATUS(decoder(member(file, "decoder")));
    PLUMB_TRY_STATUS(added_tokens(member(file, "added_tokens")));
    PLUMB_TRY_STATUS(config_tokens(config));
    PLUMB_TRY_STATUS(post_processor(member(file, "post_processor")));
    return Tokenizer(std::move(data_));
  }

 private:
  Status model_options(const Json& model) {
    const Json& type = member(model, "type");
    if (type != "BPE") return unsupported(fmt::format("model type {} (only BPE is read)", shown(type)));
    for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = member(model, key);
      const bool off = value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty()) ||
                       (value.is_number() && value == 0);
      if (!off) return unsupported(fmt::format("model.{} is {}", key, shown(value)));
    }
    PLUMB_TRY(const bool fallback, bool_member(model, "byte_fallback"));
    if (fallback) return unsupported("model.byte_fallback is true");
    PLUMB_TRY(ignore_merges_, bool_member(model, "ignore_merges"));
    return {};
  }

  Status put(int32_t id, std::string_view text) {
    if (static_cast<size_t>(id) >= data_->tokens.size()) data_->tokens.resize(static_cast<size_t>(id) + 1);
    Tokenizer::Data::Token& token = data_->tokens[id];
    if (token.present && token.text != text)
      return corrupt(fmt::format("id {} is given to '{}' and to '{}'", id, token.text, text));
    if (const auto [it, fresh] = data_->ids.emplace(text, id); !fresh && it->second != id)
      return corrupt(fmt::format("token '{}' has the ids {} and {}", text, it->second, id));
    token.text = text;
    token.bytes = bytes_from_alphabet(text).value_or(std::string(text));
    token.present = true;
    return {};
  }

  Status vocabulary(const Json& vocab) {
    if (!vocab.is_object() || vocab.empty()) return corrupt("'model.vocab' is missing or empty");
    data_->ids.reserve(vocab.size() + 64);
    id_limit_ = 65536 + 4 * static_cast<int64_t>(vocab.size());
    for (const auto& [text, value] : vocab.items()) {
      PLUMB_TRY(const int32_t id, token_id_of(value, text, id_limit_));
      PLUMB_TRY_STATUS(put(id, text));
      if (const auto bytes = bytes_from_alphabet(text)) of_bytes_.emplace(*bytes, id);
    }
    // C0, C1 and F5 on never occur in UTF-8; all others must be sayable.
    for (int byte = 0; byte < 0xF5; ++byte)
      if (byte != 0xC0 && byte != 0xC1 && !of_bytes_.contains(std::string(1, static_cast<char>(byte))))
        return unsupported(fmt::format("model.vocab lacks the token of byte {}: not a byte-level vocabulary", byte));
    return {};
  }

  Status merges(const Json& list) {
    if (!list.is_array()) return corrupt("'model.merges' is missing");
    std::vector<Bpe::Merge> out;
    out.reserve(list.size());
    for (const Json& entry : list) {
      std::string left;
      std::string right;
      if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
        left = entry[0].get<std::string>();
        right = entry[1].get<std::string>();
      } else if (entry.is_string()) {
        const auto& both = entry.get_ref<const std::string&>();
        const size_t blank = both.find(' ');
        if (blank == std::string::npos || both.find(' ', blank + 1) != std::string::npos)
          return corrupt(fmt::format("merge {} is not two tokens with a blank between", shown(entry)));
        left = both.substr(0, blank);
        right = both.substr(blank + 1);
      } else {
        return corrupt(fmt::format("merge {} is neither two tokens nor a text", shown(entry)));
      }
      const auto a = data_->ids.find(left);
      const auto b = data_->ids.find(right);
      const auto c = data_->ids.find(left + right);
      if (a == data_->ids.end() || b == data_->ids.end() || c == data_->ids.end())
        return corrupt(fmt::format("merge {} names a token that the vocabulary lacks", shown(entry)));
      out.push_back({a->second, b->second, c->second});
    }
    data_->bpe = std::make_unique<const Bpe>(std::move(of_bytes_), out, ignore_merges_);
    return {};
  }

  static Status decoder(const Json& node) {
    const Json& type = node.is_object() ? member(node, "type") : node;
    if (type != "ByteLevel") return unsupported(fmt::format("decoder {} is not supported", shown(node)));
    return {};
  }

  Status added_tokens(const Json& list) {
    if (list.is_null()) return {};
    if (!list.is_array()) return corrupt("'added_tokens' is not a list");
    for (const Json& entry : list) {
      if (!entry.is_object()) return corrupt(fmt::format("added token {} is not an object", shown(entry)));
      const std::string content = token_content(entry);
      PLUMB_TRY(const int32_t id, token_id_of(member(entry, "id"), content, id_limit_));
      PLUMB_TRY_STATUS(added_token(id, entry));
    }
    return {};
  }

  Status added_token(int32_t id, const Json& entry) {
    AddedToken token{.id = id, .content = token_content(entry)};
    if (token.content.empty()) return corrupt(fmt::format("added token {} has no content", shown(entry)));
    PLUMB_TRY(token.special, bool_member(entry, "special"));
    PLUMB_TRY(token.single_word, bool_member(entry, "single_word"));
    PLUMB_TRY(token.lstrip, bool_member(entry, "lstrip"));
    PLUMB_TRY(token.rstrip, bool_member(entry, "rstrip"));
    PLUMB_TRY(token.normalized, bool_member(entry, "normalized"));
    PLUMB_TRY_STATUS(put(id, token.content));
    Tokenizer::Data::Token& known = data_->tokens[id];
    if (known.added) return corrupt(fmt::format("added token '{}' is listed twice", token.content));
    known.added = true;
    known.special = token.special;
    if (token.normalized) {
      // The original keeps a normalised token's text normalised, and finds its id by the text as written.
      known.text = data_->normalizer.apply(token.content);
      known.bytes = bytes_from_alphabet(known.text).value_or(known.text);
      data_->normalized_matcher.add(token, known.text);
    } else {
      data_->raw_matcher.add(token, token.content);
    }
    return {};
  }

  // transformers adds the tokens that only tokenizer_config.json knows, and puts bos/eos around texts if told to.
  Status config_tokens(const Json& config) {
    const Json& decoder_map = member(config, "added_tokens_decoder");
    if (decoder_map.is_object())
      for (const auto& [key, entry] : decoder_map.items()) {
        const bool digits = !key.empty() && key.size() <= 8 && key.find_first_not_of("0123456789") == std::string::npos;
        if (!digits || !entry.is_object())
          return Error{Code::Corrupt, fmt::format("tokenizer_config.json: added_tokens_decoder has the key '{}'", key)};
        const auto id = static_cast<int32_t>(std::stol(key));
        const bool known = static_cast<size_t>(id) < data_->tokens.size() && data_->tokens[id].added;
        if (known && data_->tokens[id].text == token_content(entry)) continue;
        PLUMB_TRY(const int32_t checked, token_id_of(Json(id), key, id_limit_));
        PLUMB_TRY_STATUS(added_token(checked, entry));
      }
    const auto named = [&](const char* key) -> std::optional<int32_t> {
      const auto it = data_->ids.find(token_content(member(config, key)));
      if (it == data_->ids.end()) return std::nullopt;
      return it->second;
    };
    data_->bos = named("bos_token");
    data_->eos = named("eos_token");
    const bool add_bos = member(config, "add_bos_token") == true;
    const bool add_eos = member(config, "add_eos_token") == true;
    if (add_bos && data_->bos) data_->prefix = {*data_->bos};
    if (add_eos && data_->eos) data_->suffix = {*data_->eos};
    return {};
  }

  Status post_processor(const Json& node) {
    if (node.is_null()) return {};
    const Json& type = node.is_object() ? member(node, "type") : node;
    if (type == "ByteLevel") return {};  // moves offsets, not ids
    if (type == "TemplateProcessing") return template_processing(node);
    const Json& parts = member(node, "processors");
    if (type == "Sequence" && parts.is_array()) {
      for (const Json& part : parts) {
        if (part.is_object() && member(part, "type") == "Sequence")
          return unsupported("nested post_processor Sequence");
        PLUMB_TRY_STATUS(post_processor(part));
      }
      return {};
    }
    return unsupported(fmt::format("post_processor {} is not supported", shown(type)));
  }

  // `single` is a list of {"SpecialToken": {"id": text}} around one {"Sequence": {"id": "A"}}.
  Status template_processing(const Json& node) {
    const Json& single = member(node, "single");
    if (!single.is_array()) return corrupt("post_processor TemplateProcessing without 'single'");
    data_->prefix.clear();
    data_->suffix.clear();
    bool after = false;
    for (const Json& entry : single) {
      if (entry.is_object() && entry.contains("Sequence")) {
        after = true;
        continue;
      }
      const Json& special = entry.is_object() ? member(entry, "SpecialToken") : entry;
      const Json& name = special.is_object() ? member(special, "id") : special;
      const auto id = name.is_string() ? data_->ids.find(name.get_ref<const std::string&>()) : data_->ids.end();
      if (id == data_->ids.end()) return corrupt(fmt::format("TemplateProcessing names {}", shown(entry)));
      (after ? data_->suffix : data_->prefix).push_back(id->second);
    }
    return {};
  }

  std::unique_ptr<Tokenizer::Data> data_ = std::make_unique<Tokenizer::Data>();
  IdByText of_bytes_{};
  bool ignore_merges_ = false;
  int64_t id_limit_ = 0;  // real vocabularies have few gaps; keeps a hostile id from asking for memory
};

Result<Tokenizer> Tokenizer::parse(std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  const Json file = Json::parse(tokenizer_json, nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded()) return corrupt("not valid JSON");
  Json config = Json::object();
  if (!tokenizer_config_json.empty()) config = Json::parse(tokenizer_config_json, nullptr, false);
  if (!config.is_object()) return Error{Code::Corrupt, "tokenizer_config.json: not a JSON object"};
  return TokenizerParser().run(file, config);
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& model_dir) {
  PLUMB_TRY(const std::string file, read_text_file(model_dir / "tokenizer.json"));
  std::string config;
  const auto config_path = model_dir / "tokenizer_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(config_path, ignored)) {
    PLUMB_TRY(config, read_text_file(config_path));
  }
  auto parsed = parse(file, config);
  if (!parsed) return std::move(parsed.error()).in(model_dir.string());
  return parsed;
}

}  // namespace plumb

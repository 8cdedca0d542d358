#include "text/normalizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace plumb {

Result<Normalizer> Normalizer::parse(const nlohmann::json& node) {
  Normalizer out;
  if (node.is_null()) return out;
  const auto unsupported = [](const nlohmann::json& found) {
    return Error{Code::Unsupported,
                 fmt::format("tokenizer.json: normalizer {} is not supported", found.dump().substr(0, 200)),
                 "token ids would differ from the original's",
                 {"NFC", "NFD", "NFKC", "NFKD", "Sequence", "null"}};
  };
  const auto type = node.is_object() ? node.find("type") : node.end();
  if (!node.is_object() || type == node.end()) return unsupported(node);
  if (*type == "Sequence") {
    const auto parts = node.find("normalizers");
    if (parts == node.end() || !parts->is_array()) return unsupported(node);
    for (const auto& part : *parts) {
      if (part.is_object() && part.contains("type") && part["type"] == "Sequence") return unsupported(part);
      PLUMB_TRY(const Normalizer one, parse(part));
      out.forms_.insert(out.forms_.end(), one.forms_.begin(), one.forms_.end());
    }
    return out;
  }
  if (*type == "NFC") {
    out.forms_ = {utf8::Form::Nfc};
  } else if (*type == "NFD") {
    out.forms_ = {utf8::Form::Nfd};
  } else if (*type == "NFKC") {
    out.forms_ = {utf8::Form::Nfkc};
  } else if (*type == "NFKD") {
    out.forms_ = {utf8::Form::Nfkd};
  } else {
    return unsupported(node);
  }
  return out;
}

std::string Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const utf8::Form form : forms_) out = utf8::normalize(out, form);
  return out;
}

}  // namespace plumb

#include "serve/constraint_fields.h"

#include "serve/strict_json.h"

namespace plumb {

namespace {

using Kind = grammar::ContentShape::Kind;

constexpr size_t kMaxSource = size_t{1} << 20;
constexpr size_t kMaxChoices = 10'000;

class Reader {
 public:
  Reader(Fields& fields, ConstraintField& out) : fields_(fields), out_(out) {}

  void read() {
    if (const Json* format = fields_.find("response_format"); format != nullptr) response_format(*format);
    for (const char* name : {"guided_json", "json_schema"}) schema(fields_, name, name);
    for (const char* name : {"guided_regex", "regex"}) source(fields_, name, name, Kind::Regex);
    for (const char* name : {"guided_grammar", "ebnf", "grammar"}) source(fields_, name, name, Kind::Ebnf);
    choices(fields_, "guided_choice", "guided_choice");
    structured_outputs();
    for (const char* name : {"guided_decoding_backend", "guided_whitespace_pattern"}) {
      fields_.not_offered(name, nullptr, "the server's own engine and white space are used");
    }
  }

 private:
  void set(const std::string& path, Kind kind) {
    if (out_.shape.kind != Kind::Free) {
      return fields_.fail(path, "cannot go together with '" + out_.field + "'");
    }
    out_.field = path;
    out_.shape.kind = kind;
  }

  void response_format(const Json& format) {
    if (!format.is_object()) {
      return fields_.fail("response_format", "is " + shown(format) + ", expected an object", "invalid_type");
    }
    Fields inner(format, "response_format");
    const std::string type = inner.text("type");
    if (inner.error()) return fields_.fail(*inner.error());
    if (type == "json_object") return set("response_format", Kind::JsonObject);
    if (type == "json_schema") return response_schema(inner);
    if (type != "text") {
      fields_.fail("response_format.type",
                   "is \"" + type.substr(0, 40) + "\", expected text, json_object or json_schema");
    }
  }

  void response_schema(Fields& format) {
    const std::string path = "response_format.json_schema";
    const Json* wrapper = format.find("json_schema");
    if (wrapper == nullptr || !wrapper->is_object()) {
      return fields_.fail(path, "is missing or no object", "missing_required_parameter");
    }
    Fields inner(*wrapper, path);
    (void)inner.text("name");
    (void)inner.text("description");
    (void)inner.boolean("strict", false);
    if (inner.error()) return fields_.fail(*inner.error());
    if (inner.find("schema") == nullptr) {
      return fields_.fail(path + ".schema", "is missing", "missing_required_parameter");
    }
    schema(inner, "schema", path + ".schema");
  }

  // As an object, or as a string that holds one.
  void schema(Fields& from, const char* name, const std::string& path) {
    const Json* value = from.find(name);
    if (value == nullptr) return;
    if (!value->is_object() && !value->is_boolean() && !value->is_string()) {
      return fields_.fail(path, "is " + shown(*value) + ", expected a schema", "invalid_type");
    }
    std::string text = value->is_string() ? value->get<std::string>() : value->dump();
    if (value->is_string() && !parse_strict_json(text)) return fields_.fail(path, "is a string that is no JSON");
    set(path, Kind::JsonSchema);
    out_.shape.source = std::move(text);
    limit(path, out_.shape.source.size());
  }

  void source(Fields& from, const char* name, const std::string& path, Kind kind) {
    const Json* value = from.find(name);
    if (value == nullptr) return;
    if (!value->is_string()) return fields_.fail(path, "is " + shown(*value) + ", expected a string", "invalid_type");
    set(path, kind);
    out_.shape.source = value->get<std::string>();
    limit(path, out_.shape.source.size());
  }

  void choices(Fields& from, const char* name, const std::string& path) {
    const Json* value = from.find(name);
    if (value == nullptr) return;
    if (!value->is_array() || value->empty() || value->size() > kMaxChoices) {
      return fields_.fail(path, "is " + shown(*value) + ", expected a list of 1 to 10000 strings", "invalid_type");
    }
    set(path, Kind::Choice);
    size_t bytes = 0;
    for (const Json& one : *value) {
      if (!one.is_string()) return fields_.fail(path, "holds " + shown(one) + ", expected strings", "invalid_type");
      out_.shape.choices.push_back(one.get<std::string>());
      bytes += out_.shape.choices.back().size();
    }
    limit(path, bytes);
  }

  void structured_outputs() {
    const Json* value = fields_.find("structured_outputs");
    if (value == nullptr) return;
    if (!value->is_object()) {
      return fields_.fail("structured_outputs", "is " + shown(*value) + ", expected an object", "invalid_type");
    }
    Fields inner(*value, "structured_outputs");
    schema(inner, "json", "structured_outputs.json");
    source(inner, "regex", "structured_outputs.regex", Kind::Regex);
    source(inner, "grammar", "structured_outputs.grammar", Kind::Ebnf);
    choices(inner, "choice", "structured_outputs.choice");
    if (inner.boolean("json_object", false)) set("structured_outputs.json_object", Kind::JsonObject);
    if (inner.error()) return fields_.fail(*inner.error());
    if (const std::vector<std::string> unknown = inner.unknown(); !unknown.empty()) {
      fields_.fail("structured_outputs." + unknown.front().substr(0, 128), "is not offered", "unsupported_parameter");
    }
  }

  void limit(const std::string& path, size_t bytes) {
    if (bytes > kMaxSource) fields_.fail(path, "is over 1 MiB");
  }

  Fields& fields_;
  ConstraintField& out_;
};

}  // namespace

void read_constraint(Fields& fields, ConstraintField& constraint) { Reader(fields, constraint).read(); }

}  // namespace plumb

#include "grammar/json_schema.h"

#include <algorithm>
#include <map>
#include <set>

#include "grammar/json_keywords.h"
#include "grammar/json_text.h"
#include "grammar/numbers.h"
#include "grammar/regex_syntax.h"
#include "grammar/schema_merge.h"

namespace plumb::grammar {
namespace {

constexpr int kMaxSchemaDepth = 64;
constexpr size_t kMaxNodes = 20'000;  // schemas looked at, with all that joining multiplies

class Compiler {
 public:
  Compiler(const Json& root, Rules& rules) : root_(root), rules_(rules), json_(add_json_rules(rules)) {}

  Result<int> compile() {
    const int top = rules_.add("schema");
    refs_["#"] = top;
    Expr body = value(root_, "", 0);
    PLUMB_TRY_STATUS(compile_references());
    rules_.bodies[static_cast<size_t>(top)] = std::move(body);
    return top;
  }

  Result<std::vector<Argument>> arguments() {
    std::vector<Argument> out;
    const Json flat = flatten(root_, "", 0);
    const Json named = flat.value("properties", Json::object()), required = flat.value("required", Json::array());
    if (!named.is_object()) fail("", "properties", "is no object");
    if (!required.is_array()) fail("", "required", "is no list");
    for (const auto& [name, schema] : named.items()) {
      if (!error_.empty()) break;
      const bool needed = std::ranges::find(required, Json(name)) != required.end();
      out.push_back({name, needed, argument(schema, join("properties", name))});
    }
    PLUMB_TRY_STATUS(compile_references());
    return out;
  }

 private:
  Status compile_references() {
    while (error_.empty() && !open_refs_.empty()) {
      const auto [pointer, index] = open_refs_.back();
      open_refs_.pop_back();
      Expr target = value(*resolve(pointer, pointer), pointer, 0);
      rules_.bodies[static_cast<size_t>(index)] = std::move(target);
    }
    if (!error_.empty()) return Error{Code::Usage, error_, {}, {}};
    return {};
  }

  // Strings stand in a call as they are; whatever may be a string and something else, too.
  Expr argument(const Json& schema, const std::string& path) {
    const Json flat = flatten(schema, path, 0);
    if (!error_.empty()) return text("");
    for (const char* key : {"anyOf", "oneOf"}) {
      const Json* list = get(flat, path, key, &Json::is_array, "list");
      if (list == nullptr) continue;
      std::vector<Expr> ways;
      for (size_t i = 0; i < list->size(); ++i) ways.push_back(argument((*list)[i], at_index(path, key, i)));
      return choice(std::move(ways));
    }
    const Json types = flat.value("type", Json(nullptr));
    if (const auto it = flat.find("enum"); it != flat.end() && it->is_array()) {
      std::vector<Expr> ways;
      for (const Json& one : *it) ways.push_back(text(one.is_string() ? one.get<std::string>() : dumped(one)));
      return choice(std::move(ways));
    }
    const bool stringy =
        types == "string" || (types.is_array() && std::ranges::find(types, Json("string")) != types.end());
    if (stringy) return string(flat, path, /*raw=*/true);
    const std::vector<std::string> implied = implied_types(flat);
    if (types.is_null() && (implied.empty() || implied[0] == "string")) return string(flat, path, /*raw=*/true);
    return typed(flat, path, 0);
  }

  static std::string join(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + (key.starts_with('[') ? "" : ".") + key;
  }
  static std::string at_index(const std::string& path, const char* key, size_t i) {
    return join(path, std::string(key) + "[" + std::to_string(i) + "]");
  }
  Expr fail(const std::string& path, const std::string& key, std::string_view why) {
    const std::string where = key.empty() ? path : join(path, key);
    if (error_.empty()) error_ = (where.empty() ? "the schema" : where) + ": " + std::string(why);
    return text("");
  }
  // The keyword when it is there and of the kind wanted.
  const Json* get(const Json& schema, const std::string& path, const char* key, bool (Json::*kind)() const,
                  std::string_view expected) {
    const auto it = schema.find(key);
    if (it == schema.end()) return nullptr;
    if (((*it).*kind)()) return &*it;
    fail(path, key, "is no " + std::string(expected));
    return nullptr;
  }
  int count(const Json& schema, const std::string& path, const char* key, int fallback) {
    const Json* value = get(schema, path, key, &Json::is_number, "number");
    if (value == nullptr) return fallback;
    const auto number = value->get<double>();
    if (!(number >= 0 && number <= 1e6) || number != static_cast<double>(static_cast<int>(number))) {
      fail(path, key, "is no whole number from 0 to 1000000");
      return fallback;
    }
    return static_cast<int>(number);
  }

  // ---- from any schema to one without $ref and allOf ----

  // `pointer` is "#" or "#/a/b"; nullptr after an error.
  const Json* resolve(const std::string& pointer, const std::string& path) {
    if (pointer == "#" || pointer == "#/") return &root_;
    const Json* at = &root_;
    if (!pointer.starts_with("#/")) {
      fail(path, "$ref", "points to '" + pointer + "', only references inside the schema (#/...) work");
      return nullptr;
    }
    for (size_t i = 2; i <= pointer.size();) {
      const size_t end = std::min(pointer.find('/', i), pointer.size());
      std::string key;
      for (size_t k = i; k < end; ++k) {
        const bool escaped = pointer[k] == '~' && k + 1 < end && (pointer[k + 1] == '0' || pointer[k + 1] == '1');
        key += escaped ? (pointer[++k] == '0' ? '~' : '/') : pointer[k];
      }
      const bool index = at->is_array() && !key.empty() && key.size() < 6 &&
                         std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; }) &&
                         static_cast<size_t>(std::stoi(key)) < at->size();
      if (index) {
        at = &(*at)[static_cast<size_t>(std::stoi(key))];
      } else if (at->is_object() && at->contains(key)) {
        at = &(*at)[key];
      } else {
        fail(path, "$ref", "points to '" + pointer + "', which is not there");
        return nullptr;
      }
      i = end + 1;
    }
    return at;
  }

  Expr reference(const std::string& pointer, const std::string& path) {
    if (resolve(pointer, path) == nullptr) return text("");
    const auto [entry, fresh] = refs_.try_emplace(pointer, -1);
    if (fresh) {
      entry->second = rules_.add(pointer);
      open_refs_.emplace_back(pointer, entry->second);
    }
    return rule(entry->second);
  }

  bool check_keywords(const Json& schema, const std::string& path) {
    for (const auto& [key, value] : schema.items()) {
      if (is_annotation(key) || is_assertion(key)) continue;
      fail(path, key, "this keyword is not offered");
      return false;
    }
    return true;
  }

  // The schema's own keywords, its $ref and its allOf as one.
  Json flatten(const Json& schema, const std::string& path, int depth) {
    if (depth > kMaxSchemaDepth) {
      fail(path, "", "references and allOf go over 64 deep");
      return Json::object();
    }
    if (schema.is_boolean()) return schema.get<bool>() ? Json::object() : Json{{"enum", Json::array()}};
    if (!schema.is_object()) {
      fail(path, "", "is no object and no boolean");
      return Json::object();
    }
    if (!check_keywords(schema, path)) return Json::object();
    Json out = Json::object();
    for (const auto& [key, value] : schema.items()) {
      if (!is_annotation(key) && key != "$ref" && key != "allOf" && key != "const") out[key] = value;
    }
    const auto add = [&](const Json& other, const std::string& where) {
      if (!error_.empty()) return;
      Result<Json> merged = merge_schemas(out, other, where);
      if (merged) {
        out = *std::move(merged);
      } else if (error_.empty()) {
        error_ = merged.error().what;
      }
    };
    if (schema.contains("const")) add({{"enum", Json::array({schema["const"]})}}, path);
    if (const Json* ref = get(schema, path, "$ref", &Json::is_string, "string"); ref != nullptr) {
      const Json* target = resolve(ref->get<std::string>(), path);
      if (target != nullptr) add(flatten(*target, path, depth + 1), path);
    }
    if (const Json* all = get(schema, path, "allOf", &Json::is_array, "list"); all != nullptr) {
      for (size_t i = 0; i < all->size() && error_.empty(); ++i) {
        const std::string where = at_index(path, "allOf", i);
        add(flatten((*all)[i], where, depth + 1), where);
      }
    }
    return out;
  }

  // ---- to expressions ----

  Expr value(const Json& schema, const std::string& path, int depth) {
    if (!error_.empty()) return text("");
    if (depth > kMaxSchemaDepth || ++nodes_ > kMaxNodes) return fail(path, "", "the schema is too large or too deep");
    if (schema.is_boolean()) return schema.get<bool>() ? rule(json_.value) : choice({});
    if (schema.is_object() && schema.contains("$ref") && schema["$ref"].is_string()) {
      const bool alone = std::ranges::all_of(
          schema.items(), [](const auto& item) { return item.key() == "$ref" || is_annotation(item.key()); });
      if (alone) return reference(schema["$ref"].get<std::string>(), path);
    }
    const Json flat = flatten(schema, path, depth);
    if (!error_.empty()) return text("");
    for (const char* key : {"anyOf", "oneOf"}) {
      if (const Json* list = get(flat, path, key, &Json::is_array, "list"); list != nullptr) {
        return branches(flat, *list, key, path, depth);
      }
    }
    if (!error_.empty()) return text("");
    return typed(flat, path, depth);
  }

  Expr branches(const Json& flat, const Json& list, const char* key, const std::string& path, int depth) {
    Json base = flat;
    base.erase(key);
    std::vector<Json> flattened;
    std::vector<Expr> ways;
    for (size_t i = 0; i < list.size() && error_.empty(); ++i) {
      const std::string where = at_index(path, key, i);
      if (std::string_view(key) == "oneOf") {
        flattened.push_back(flatten(list[i], where, depth + 1));
        for (size_t k = 0; k < i && error_.empty(); ++k) {
          if (disjoint_schemas(flattened[k], flattened[i])) continue;
          return fail(path, key,
                      "branches " + std::to_string(k) + " and " + std::to_string(i) +
                          " may hold at once, which is not offered; use anyOf");
        }
      }
      if (base.empty()) {
        ways.push_back(value(list[i], where, depth + 1));
        continue;
      }
      Result<Json> merged = merge_schemas(base, flatten(list[i], where, depth + 1), where);
      if (!merged) return fail(merged.error().what, "", "");
      ways.push_back(value(*merged, where, depth + 1));
    }
    return choice(std::move(ways));
  }

  Expr typed(const Json& flat, const std::string& path, int depth) {
    std::vector<std::string> types;
    if (const auto it = flat.find("type"); it != flat.end()) {
      for (const Json& type : it->is_array() ? *it : Json::array({*it})) {
        static const std::set<std::string> kTypes = {"null",   "boolean", "object", "array",
                                                     "string", "integer", "number"};
        if (!type.is_string() || !kTypes.contains(type.get<std::string>())) {
          return fail(path, "type", "is no type of JSON");
        }
        types.push_back(type.get<std::string>());
      }
    }
    if (const Json* values = get(flat, path, "enum", &Json::is_array, "list"); values != nullptr) {
      return literals(flat, *values, types, path);
    }
    if (!error_.empty()) return text("");
    if (types.empty() && !flat.contains("type")) types = implied_types(flat);
    if (types.empty() && !flat.contains("type")) return rule(json_.value);
    std::vector<Expr> ways;
    ways.reserve(types.size());
    for (const std::string& type : types) ways.push_back(of_type(type, flat, path, depth));
    return choice(std::move(ways));
  }

  Expr literals(const Json& flat, const Json& values, const std::vector<std::string>& types, const std::string& path) {
    for (const auto& [key, unused] : flat.items()) {
      if (key != "enum" && key != "type") return fail(path, key, "is not offered beside enum or const");
    }
    std::vector<Expr> ways;
    for (const Json& one : values) {
      const bool fits = types.empty() || std::ranges::any_of(types, [&](const auto& t) { return has_type(one, t); });
      if (fits) ways.push_back(text(dumped(one)));
    }
    return choice(std::move(ways));
  }

  Expr of_type(const std::string& type, const Json& flat, const std::string& path, int depth) {
    if (type == "null") return text("null");
    if (type == "boolean") return choice({text("true"), text("false")});
    if (type == "string") return string(flat, path, /*raw=*/false);
    if (type == "array") return array(flat, path, depth);
    if (type == "object") return object(flat, path, depth);
    return number(flat, path, type == "integer");
  }

  Expr number(const Json& flat, const std::string& path, bool integer) {
    NumberBounds bounds;
    const auto read = [&](const char* key) -> std::optional<double> {
      const Json* value = get(flat, path, key, &Json::is_number, "number");
      return value == nullptr ? std::nullopt : std::optional(value->get<double>());
    };
    bounds.min = read("minimum");
    bounds.max = read("maximum");
    if (const auto above = read("exclusiveMinimum"); above && (!bounds.min || *above >= *bounds.min)) {
      bounds.min = above;
      bounds.min_excluded = true;
    }
    if (const auto below = read("exclusiveMaximum"); below && (!bounds.max || *below <= *bounds.max)) {
      bounds.max = below;
      bounds.max_excluded = true;
    }
    if (const auto step = read("multipleOf"); step && !(integer && *step == 1)) {
      return fail(path, "multipleOf", "this keyword is not offered");
    }
    return integer ? integers(bounds) : numbers(bounds);
  }

  // `raw`: as it is, for arguments of tool calls; else between quotes, with escapes.
  Expr string(const Json& flat, const std::string& path, bool raw) {
    const int min = count(flat, path, "minLength", 0), max = count(flat, path, "maxLength", -1);
    const Json* pattern = get(flat, path, "pattern", &Json::is_string, "string");
    const Json* format = get(flat, path, "format", &Json::is_string, "string");
    const std::string_view known = format == nullptr ? "" : format_pattern(format->get_ref<const std::string&>());
    if (max >= 0 && min > max) return choice({});
    if (pattern == nullptr && known.empty()) {
      return raw ? repeat(chars(CodePoints::all()), min, max) : json_string(min, max);
    }
    if (pattern != nullptr && !known.empty()) return fail(path, "pattern", "is not offered beside a format");
    Result<Expr> regex = pattern != nullptr ? parse_regex(pattern->get_ref<const std::string&>(), /*search=*/true)
                                            : parse_regex(known, /*search=*/false);
    const char* key = pattern != nullptr ? "pattern" : "format";
    if (!regex) return fail(path, key, regex.error().what);
    Expr body = raw ? *std::move(regex) : inside_json(*std::move(regex));
    if (min > 0 || max >= 0) {
      Result<Expr> bounded = with_length(body, min, max, rules_);
      if (!bounded) return fail(path, key, bounded.error().what);
      body = *std::move(bounded);
    }
    return raw ? body : sequence({text("\""), std::move(body), text("\"")});
  }

  Expr array(const Json& flat, const std::string& path, int depth) {
    const int min = count(flat, path, "minItems", 0), max = count(flat, path, "maxItems", -1);
    if (max >= 0 && min > max) return choice({});
    if (flat.contains("uniqueItems") && flat["uniqueItems"] != false && max != 0 && max != 1) {
      return fail(path, "uniqueItems", "this keyword is not offered");
    }
    std::vector<Expr> leading;
    if (const Json* list = get(flat, path, "prefixItems", &Json::is_array, "list"); list != nullptr) {
      for (size_t i = 0; i < list->size(); ++i) {
        leading.push_back(value((*list)[i], at_index(path, "prefixItems", i), depth + 1));
      }
    }
    const int fixed = static_cast<int>(leading.size());
    const Json items = flat.value("items", Json(true));
    if (items.is_array()) return fail(path, "items", "is a list; write prefixItems");
    const Expr item = items == false ? choice({}) : rules_.shared(path, value(items, join(path, "items"), depth + 1));
    const int more = max < 0 ? -1 : std::max(0, max - fixed);
    Expr tail = items == false && min <= fixed ? text("") : separated(item, std::max(0, min - fixed), more, fixed > 0);
    // Leading items from `min` on may be left out, and with each all that follow.
    for (int i = fixed - 1; i >= 0; --i) {
      if (max >= 0 && i >= max) {
        tail = text("");
        continue;
      }
      std::vector<Expr> parts;
      if (i > 0) parts.push_back(comma());
      parts.push_back(std::move(leading[static_cast<size_t>(i)]));
      parts.push_back(std::move(tail));
      tail = sequence(std::move(parts));
      if (i >= min) tail = optional(std::move(tail));
    }
    return brackets(std::move(tail));
  }

  struct Property {
    std::string name{};
    Expr value{};
    bool required = false;
  };

  Expr object(const Json& flat, const std::string& path, int depth) {
    std::vector<Property> named;
    std::set<std::string> required;
    if (const Json* list = get(flat, path, "required", &Json::is_array, "list"); list != nullptr) {
      for (const Json& name : *list) {
        if (!name.is_string()) return fail(path, "required", "holds what is no string");
        required.insert(name.get<std::string>());
      }
    }
    const Json extra = flat.value("additionalProperties", Json(nullptr));
    if (const Json* list = get(flat, path, "properties", &Json::is_object, "object"); list != nullptr) {
      for (const auto& [name, schema] : list->items()) {
        const std::string where = join(join(path, "properties"), name);
        named.push_back({name, rules_.shared(where, value(schema, where, depth + 1)), required.contains(name)});
        required.erase(name);
      }
    }
    const Json others = extra.is_null() ? Json(true) : extra;
    const Expr any = others == false ? choice({}) : value(others, join(path, "additionalProperties"), depth + 1);
    const Expr other_value = rules_.shared(path, any);
    for (const std::string& name : required) named.push_back({name, other_value, true});
    return braces(members(flat, path, depth, named, extra.is_null() ? named.empty() : others != false, other_value));
  }
  static std::vector<std::string> names_of(const std::vector<Property>& properties) {
    std::vector<std::string> names;
    names.reserve(properties.size());
    for (const Property& p : properties) names.push_back(p.name);
    return names;
  }

  Expr members(const Json& flat, const std::string& path, int depth, const std::vector<Property>& named, bool open,
               const Expr& other_value) {
    const int min = count(flat, path, "minProperties", 0), max = count(flat, path, "maxProperties", -1);
    if (named.empty()) {
      if (min > 1) return fail(path, "minProperties", "over 1 is not offered for free names, which may repeat");
      std::optional<Expr> key = free_key(flat, path, depth, open);
      if (!key) return text("");
      return separated(member(*std::move(key), pattern_value(flat, path, depth, other_value)), min, max, false);
    }
    const bool max_holds = max < 0 || (!open && std::ssize(named) <= max);
    if (min > std::ranges::count_if(named, &Property::required))
      return fail(path, "minProperties", "is not offered beside optional properties");
    if (!max_holds) return fail(path, "maxProperties", "is not offered beside optional properties");
    for (const char* key : {"patternProperties", "propertyNames"}) {
      if (flat.contains(key)) return fail(path, key, "is not offered beside properties");
    }
    return members_in_order(path, named, open ? &other_value : nullptr);
  }

  // The named members in their order, then any number of others, which have the value `other`; none when it is null.
  Expr members_in_order(const std::string& path, const std::vector<Property>& named, const Expr* other) {
    // Rule (i, comma): the members from the i-th on; `comma` when one has been written before.
    const size_t first_rule = rules_.bodies.size();
    const auto from = [&](size_t i, bool follows) { return static_cast<int>(first_rule + 2 * i + (follows ? 1 : 0)); };
    for (size_t i = 0; i < 2 * (named.size() + 1); ++i)
      rules_.add("members of " + (path.empty() ? "the schema" : path));
    const Expr rest = other != nullptr ? member(json_key_except(names_of(named), rules_), *other) : text("");
    for (const bool follows : {false, true}) {
      rules_.bodies[static_cast<size_t>(from(named.size(), follows))] =
          other != nullptr ? separated(rest, 0, -1, follows) : text("");
      for (size_t i = 0; i < named.size(); ++i) {
        const Property& p = named[i];
        std::vector<Expr> ways;
        ways.push_back(
            sequence({follows ? comma() : text(""), member(text(dumped(p.name)), p.value), rule(from(i + 1, true))}));
        if (!p.required) ways.push_back(rule(from(i + 1, follows)));
        rules_.bodies[static_cast<size_t>(from(i, follows))] = choice(std::move(ways));
      }
    }
    return rule(from(0, false));
  }

  // The key of members that no property names; nothing when there can be none.
  std::optional<Expr> free_key(const Json& flat, const std::string& path, int depth, bool open) {
    const bool patterns = flat.contains("patternProperties"), names = flat.contains("propertyNames");
    if (patterns && names) fail(path, "propertyNames", "is not offered beside patternProperties");
    if (names) {
      Json schema = flatten(flat["propertyNames"], join(path, "propertyNames"), depth + 1);
      if (!schema.contains("type")) schema["type"] = "string";
      return value(schema, join(path, "propertyNames"), depth + 1);
    }
    if (!patterns) return open ? std::optional(json_string(0, -1)) : std::nullopt;
    const Json& list = flat["patternProperties"];
    if (!list.is_object() || list.size() != 1 || flat.value("additionalProperties", Json(true)) != false) {
      return fail(path, "patternProperties", "works with one pattern and additionalProperties false");
    }
    Result<Expr> regex = parse_regex(list.begin().key(), /*search=*/true);
    if (!regex) return fail(path, "patternProperties", regex.error().what);
    return sequence({text("\""), inside_json(*std::move(regex)), text("\"")});
  }
  Expr pattern_value(const Json& flat, const std::string& path, int depth, const Expr& other_value) {
    if (!flat.contains("patternProperties") || !flat["patternProperties"].is_object()) return other_value;
    return value(flat["patternProperties"].begin().value(), join(path, "patternProperties"), depth + 1);
  }

  const Json& root_;
  Rules& rules_;
  const JsonRules json_;
  std::map<std::string, int> refs_{};
  std::vector<std::pair<std::string, int>> open_refs_{};
  size_t nodes_ = 0;
  std::string error_{};
};

}  // namespace

Result<std::vector<Argument>> add_arguments(const nlohmann::ordered_json& parameters, Rules& rules) {
  return Compiler(parameters, rules).arguments();
}

Result<int> add_json_schema(const nlohmann::ordered_json& schema, Rules& rules) {
  return Compiler(schema, rules).compile();
}

}  // namespace plumb::grammar

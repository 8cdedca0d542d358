#include "grammar/schema_merge.h"

#include <algorithm>
#include <set>

namespace plumb::grammar {

namespace {

constexpr size_t kMaxBranches = 64;

Json both(const Json& a, const Json& b) { return {{"allOf", Json::array({a, b})}}; }

std::set<std::string> types_of(const Json& schema) {
  std::set<std::string> out;
  const auto it = schema.find("type");
  if (it == schema.end()) return {"null", "boolean", "object", "array", "string", "integer", "number"};
  for (const Json& type : it->is_array() ? *it : Json::array({*it})) {
    if (!type.is_string()) continue;
    out.insert(type.get<std::string>());
    if (type == "number") out.insert("integer");
  }
  return out;
}

bool contains(const Json& list, const Json& value) { return std::ranges::find(list, value) != list.end(); }

class Merger {
 public:
  Merger(const Json& a, const Json& b, std::string path) : a_(a), b_(b), path_(std::move(path)), out_(a) {}

  Result<Json> merge() {
    for (const auto& [key, value] : b_.items()) {
      const auto it = a_.find(key);
      if (key == "properties" || key == "additionalProperties") continue;
      if (it == a_.end()) {
        out_[key] = value;
      } else if (*it != value) {
        join(key, *it, value);
      }
    }
    merge_properties();
    if (!error_.empty()) return Error{Code::Usage, error_, {}, {}};
    return std::move(out_);
  }

 private:
  void join(const std::string& key, const Json& x, const Json& y) {
    static const std::set<std::string> kLowest = {"maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                                  "maxProperties"};
    static const std::set<std::string> kHighest = {"minimum", "exclusiveMinimum", "minLength", "minItems",
                                                   "minProperties"};
    static const std::set<std::string> kLists = {"required", "enum", "anyOf", "oneOf"};
    const bool numbers = kLowest.contains(key) || kHighest.contains(key);
    if (numbers && !(x.is_number() && y.is_number())) return fail(key, "is no number");
    if (kLists.contains(key) && !(x.is_array() && y.is_array())) return fail(key, "is no array");
    if (key == "type") {
      join_types();
    } else if (key == "required") {
      for (const Json& name : y)
        if (!contains(x, name)) out_["required"].push_back(name);
    } else if (key == "enum") {
      std::erase_if(out_["enum"].get_ref<Json::array_t&>(), [&](const Json& v) { return !contains(y, v); });
    } else if (kLowest.contains(key)) {
      out_[key] = x.get<double>() <= y.get<double>() ? x : y;
    } else if (kHighest.contains(key)) {
      out_[key] = x.get<double>() >= y.get<double>() ? x : y;
    } else if (key == "items") {
      out_[key] = both(x, y);
    } else if (key == "uniqueItems") {
      out_[key] = true;
    } else if (key == "anyOf" || key == "oneOf") {
      join_branches(key, x, y);
    } else {
      fail(key, "differs in two schemas that must both hold, which is not offered");
    }
  }

  // One branch of each: every pair.
  void join_branches(const std::string& key, const Json& x, const Json& y) {
    if (x.size() * y.size() > kMaxBranches) return fail(key, "has too many branches to be joined with another one");
    Json pairs = Json::array();
    for (const Json& one : x)
      for (const Json& other : y) pairs.push_back(both(one, other));
    out_[key] = std::move(pairs);
  }

  void join_types() {
    const std::set<std::string> x = types_of(a_), y = types_of(b_);
    Json kept = Json::array();
    for (const std::string& type : x)
      if (y.contains(type)) kept.push_back(type);
    if (contains(kept, "number"))
      std::erase_if(kept.get_ref<Json::array_t&>(), [](const Json& t) { return t == "integer"; });
    out_["type"] = std::move(kept);
  }

  // A property that one schema names and the other doesn't must satisfy the other's additionalProperties.
  void merge_properties() {
    const Json* more_a = find(a_, "additionalProperties");
    const Json* more_b = find(b_, "additionalProperties");
    const Json none = Json::object();
    const Json& named_a = find(a_, "properties") != nullptr ? a_["properties"] : none;
    const Json& named_b = find(b_, "properties") != nullptr ? b_["properties"] : none;
    Json named = Json::object();
    for (const auto& [name, schema] : named_a.items()) {
      if (!named_b.contains(name)) {
        named[name] = narrowed(schema, more_b);
      } else {
        named[name] = schema == named_b[name] ? schema : both(schema, named_b[name]);
      }
    }
    for (const auto& [name, schema] : named_b.items()) {
      if (!named_a.contains(name)) named[name] = narrowed(schema, more_a);
    }
    if (!named.empty()) out_["properties"] = std::move(named);
    if (more_b == nullptr) return;
    if (more_a == nullptr || *more_a == true) {
      out_["additionalProperties"] = *more_b;
    } else if (*more_b == false) {
      out_["additionalProperties"] = false;
    } else if (*more_a != false && *more_b != true) {
      out_["additionalProperties"] = both(*more_a, *more_b);
    }
  }
  static Json narrowed(const Json& schema, const Json* others) {
    if (others == nullptr || *others == true) return schema;
    return *others == false ? Json(false) : both(schema, *others);
  }
  static const Json* find(const Json& schema, const char* key) {
    const auto it = schema.find(key);
    return it == schema.end() ? nullptr : &*it;
  }

  void fail(const std::string& key, std::string_view why) {
    if (error_.empty()) error_ = (path_.empty() ? key : path_ + "." + key) + ": " + std::string(why);
  }

  const Json& a_;
  const Json& b_;
  const std::string path_;
  Json out_;
  std::string error_{};
};

}  // namespace

Result<Json> merge_schemas(const Json& a, const Json& b, const std::string& path) { return Merger(a, b, path).merge(); }

bool disjoint_schemas(const Json& a, const Json& b) {
  const std::set<std::string> x = types_of(a), y = types_of(b);
  if (std::ranges::none_of(x, [&](const std::string& type) { return y.contains(type); })) return true;
  const auto values = [](const Json& s) {
    return s.contains("const") ? Json::array({s["const"]}) : s.value("enum", Json());
  };
  const Json values_a = values(a), values_b = values(b);
  if (values_a.is_array() && values_b.is_array()) {
    return std::ranges::none_of(values_a, [&](const Json& value) { return contains(values_b, value); });
  }
  if (x != std::set<std::string>{"object"} || y != x) return false;
  const auto part = [](const Json& s, const char* key) { return s.value(key, Json(nullptr)); };
  const Json named_a = part(a, "properties"), named_b = part(b, "properties");
  // A property that both need, with values that differ; or one that the other forbids.
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    const Json named = part(*one, "properties"), others = part(*other, "properties");
    for (const Json& name : part(*one, "required")) {
      if (!name.is_string()) continue;
      const auto key = name.get<std::string>();
      const bool known = others.is_object() && others.contains(key);
      if (!known && part(*other, "additionalProperties") == false) return true;
      const Json needed = part(*other, "required");
      const bool shared =
          known && needed.is_array() && contains(needed, name) && named.is_object() && named.contains(key);
      if (shared && named[key].is_object() && others[key].is_object() && disjoint_schemas(named[key], others[key])) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace plumb::grammar

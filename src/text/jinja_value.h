// The values of a template: Python's, as far as chat templates see them. Values are immutable once built, except a
// Namespace; every container knows its nesting depth so that recursion over values is bounded.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/tainted_text.h"

namespace plumb::jinja {

using Int = __int128;  // Python's integers are unbounded; JSON's reach 64 unsigned bits; operations check overflow

class Value;
struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

struct Undefined {
  std::shared_ptr<const std::string> hint{};  // what was missing, for the message
};
struct None {};

using TextPtr = std::shared_ptr<const TaintedText>;
using ListPtr = std::shared_ptr<List>;
using DictPtr = std::shared_ptr<const Dict>;
using NamespacePtr = std::shared_ptr<Namespace>;
using CallablePtr = std::shared_ptr<const Callable>;
using LoopPtr = std::shared_ptr<Loop>;

class Value {
 public:
  Value() : data_(Undefined{}) {}
  explicit Value(Undefined v) : data_(std::move(v)) {}
  explicit Value(None v) : data_(v) {}
  explicit Value(bool v) : data_(v) {}
  explicit Value(Int v) : data_(v) {}
  explicit Value(double v) : data_(v) {}
  explicit Value(TextPtr v) : data_(std::move(v)) {}
  explicit Value(ListPtr v) : data_(std::move(v)) {}
  explicit Value(DictPtr v) : data_(std::move(v)) {}
  explicit Value(NamespacePtr v) : data_(std::move(v)) {}
  explicit Value(CallablePtr v) : data_(std::move(v)) {}
  explicit Value(LoopPtr v) : data_(std::move(v)) {}
  static Value text(std::string_view trusted);
  static Value text(TaintedText text);
  static Value undefined(std::string hint);

  template <class T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }
  bool is_undefined() const { return get<Undefined>() != nullptr; }
  bool is_none() const { return get<None>() != nullptr; }
  const TaintedText* as_text() const {
    const auto* p = get<TextPtr>();
    return p ? p->get() : nullptr;
  }
  List* as_list() const {
    const auto* p = get<ListPtr>();
    return p ? p->get() : nullptr;
  }
  const Dict* as_dict() const {
    const auto* p = get<DictPtr>();
    return p ? p->get() : nullptr;
  }
  std::optional<Int> as_int() const;        // integers and booleans, as Python's int arithmetic takes them
  std::optional<double> as_number() const;  // also floats
  std::string_view type_name() const;       // Python's
  int depth() const;

 private:
  std::variant<Undefined, None, bool, Int, double, TextPtr, ListPtr, DictPtr, NamespacePtr, CallablePtr, LoopPtr> data_;
};

enum class ListKind { List, Tuple, Range, Generator, View };

struct List {
  ListKind kind = ListKind::List;
  std::string view{};  // "dict_items" and the like
  std::vector<Value> items{};
  int depth = 1;
  bool consumed = false;  // a generator gives its items once
};
Value make_list(std::vector<Value> items, ListKind kind = ListKind::List, std::string view = {});

struct Dict {
  std::vector<std::pair<Value, Value>> entries{};
  std::unordered_map<std::string, size_t> index{};  // canonical key -> entry
  int depth = 1;

  // False when the key can't be one (a list, a dict).
  bool set(const Value& key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
};
Value make_dict(Dict dict);

struct Namespace {
  std::vector<std::pair<std::string, Value>> members{};
  int depth = 1;
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

struct Macro;
struct Scope;
struct Callable {
  enum class Kind { Macro, Global, Method };
  Kind kind = Kind::Global;
  std::string name{};  // of the macro, the global function or the method
  Value self{};        // the method's object
  const Macro* macro = nullptr;
  std::shared_ptr<Scope> scope{};  // where the macro was defined
};

bool truthy(const Value& v);
bool equal(const Value& a, const Value& b);
// Less than; nullopt where Python raises a TypeError.
std::optional<bool> less(const Value& a, const Value& b);
// Python's str() and repr(), the taint of texts kept.
void append_str(TextBuilder& out, const Value& v);
void append_repr(TextBuilder& out, const Value& v);
TaintedText to_str(const Value& v);
std::string float_repr(double v);
std::string int_str(Int v);
// A key's text under which equal keys are equal; nullopt for unhashable values.
std::optional<std::string> key_of(const Value& v);
// len(); nullopt where Python raises.
std::optional<size_t> length(const Value& v);

struct FromJsonOptions {
  bool tainted = false;
  int max_depth = 100;
};
Result<Value> from_json(const nlohmann::ordered_json& json, const FromJsonOptions& options);

}  // namespace plumb::jinja

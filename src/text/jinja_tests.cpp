// `subject is name(args)`.
#include <fmt/format.h>

#include <string>

#include "text/jinja_interp.h"
#include "text/unicode.h"

namespace plumb::jinja {
namespace {

bool is_sequence(const Value& v) {
  const List* list = v.as_list();
  return v.is_undefined() || v.as_text() || v.as_dict() ||
         (list && list->kind != ListKind::Generator && list->kind != ListKind::View);
}

bool is_lower_or_upper(Interp& in, const Value& v, bool upper) {
  Args none;
  return truthy(find_text_method(upper ? "isupper" : "islower")(in, to_str(v), none));
}

std::optional<bool> test_of_type(Interp& in, std::string_view name, const Value& v) {
  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is_none();
  if (name == "boolean") return v.get<bool>() != nullptr;
  if (name == "true") return v.get<bool>() != nullptr && *v.get<bool>();
  if (name == "false") return v.get<bool>() != nullptr && !*v.get<bool>();
  if (name == "integer") return v.get<Int>() != nullptr;
  if (name == "float") return v.get<double>() != nullptr;
  if (name == "number") return v.as_number().has_value();
  if (name == "string") return v.as_text() != nullptr;
  if (name == "mapping") return v.as_dict() != nullptr;
  if (name == "sequence") return is_sequence(v);
  if (name == "iterable") return is_sequence(v) || v.as_list() != nullptr || v.get<LoopPtr>() != nullptr;
  if (name == "callable") return v.get<CallablePtr>() != nullptr || v.is_undefined();
  if (name == "lower") return is_lower_or_upper(in, v, false);
  if (name == "upper") return is_lower_or_upper(in, v, true);
  if (name == "escaped") return false;
  return std::nullopt;
}

std::string_view operator_of(std::string_view name) {
  if (name == "eq" || name == "equalto" || name == "==") return "==";
  if (name == "ne" || name == "!=") return "!=";
  if (name == "lt" || name == "lessthan" || name == "<") return "<";
  if (name == "gt" || name == "greaterthan" || name == ">") return ">";
  if (name == "le" || name == "<=") return "<=";
  if (name == "ge" || name == ">=") return ">=";
  if (name == "in") return "in";
  return {};
}

bool same_object(const Value& a, const Value& b) {
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.get<bool>() || b.get<bool>()) return a.get<bool>() && b.get<bool>() && *a.get<bool>() == *b.get<bool>();
  if (a.as_list() || b.as_list()) return a.as_list() == b.as_list();
  if (a.as_dict() || b.as_dict()) return a.as_dict() == b.as_dict();
  return a.type_name() == b.type_name() && equal(a, b);
}

bool knows_test(std::string_view name) {
  for (const std::string_view known :
       {"defined", "undefined", "none",    "boolean", "true",     "false",       "integer",
        "float",   "number",    "string",  "mapping", "sequence", "iterable",    "callable",
        "lower",   "upper",     "escaped", "odd",     "even",     "divisibleby", "sameas"})
    if (name == known) return true;
  return !operator_of(name).empty();
}

}  // namespace

bool Interp::test(const std::string& name, const Value& subject, Args args) {
  if (!ok()) return false;
  charge(1, args.line);
  if (const auto verdict = test_of_type(*this, name, subject)) {
    bind(args, name, {});
    return *verdict && ok();
  }
  if (name == "odd" || name == "even") {
    bind(args, name, {});
    const Value rest = binary("%", subject, Value(Int{2}), args.line);
    return ok() && equal(rest, Value(Int{name == "odd" ? 1 : 0}));
  }
  if (!knows_test(name)) {
    fail(args.line, fmt::format("no test named '{}'", name));
    return false;
  }
  const auto bound = bind(args, name, {"other"}, 1);
  if (!ok()) return false;
  if (name == "divisibleby") {
    const Value rest = binary("%", subject, *bound[0], args.line);
    return ok() && equal(rest, Value(Int{0}));
  }
  if (name == "sameas") return same_object(subject, *bound[0]);
  return compare(operator_of(name), subject, *bound[0], args.line) && ok();
}

}  // namespace plumb::jinja

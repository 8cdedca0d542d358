// Runs a parsed template. Every step, iteration, byte of text and level of recursion is counted against Limits, so a
// hostile template or conversation ends in an error instead of taking the server with it.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/jinja_ast.h"
#include "text/jinja_parser.h"

namespace plumb::jinja {

struct Limits {
  int64_t steps = 10'000'000;       // expressions, statements and list items
  size_t text_bytes = 1ull << 30;   // of all texts ever built
  size_t output_bytes = 64u << 20;  // of the rendered text, and of any single text
  int depth = 500;                  // of expressions within statements within macro calls
  int value_depth = 100;            // of lists within dicts within lists
  int64_t range_items = 100'000;    // as Jinja2's sandbox has it
};

struct Args {
  std::vector<Value> positional{};
  std::vector<std::pair<std::string, Value>> keywords{};
  int line = 0;
};

struct Scope {
  std::vector<std::pair<std::string, Value>> names{};
  std::shared_ptr<Scope> parent{};
  bool captured = false;  // by a macro; the interpreter then breaks the cycle at its end

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

// What `loop` is. The loop's filter runs no further ahead than someone looks.
struct Loop {
  std::vector<Value> source{};
  size_t next = 0;             // of source
  std::vector<Value> items{};  // those that passed the filter
  size_t index = 0;
  int depth = 1;
  const Stmt* statement = nullptr;
  std::shared_ptr<Scope> outer{};
  std::vector<Value> changed{};  // what loop.changed() saw last
};

class Interp {
 public:
  Interp(const Limits& limits, std::time_t now) : limits_(limits), now_(now) {}
  Interp(const Interp&) = delete;
  Interp& operator=(const Interp&) = delete;
  ~Interp();

  void define(std::string_view name, Value value) { root_->set(name, std::move(value)); }
  Result<TaintedText> run(const Template& program);

  // For filters, tests and methods.
  bool ok() const { return !error_.has_value(); }
  Value fail(int line, std::string_view message);
  void charge(int64_t steps, int line);
  Value make_text(TextBuilder&& builder, int line);
  Value make_text(TaintedText text, int line);
  Value list_of(std::vector<Value> items, ListKind kind, int line);
  Value dict_of(Dict dict, int line);
  // The items that a for loop would see: of lists, texts (characters), dicts (keys), nothing of an undefined value.
  std::vector<Value> items_of(const Value& value, int line);
  Value call(const Value& callee, Args args);
  Value attribute(const Value& object, std::string_view name, int line);
  Value item(const Value& object, const Value& key, int line);
  Value filter(const std::string& name, const Value& input, Args args);
  bool test(const std::string& name, const Value& subject, Args args);
  Value binary(std::string_view op, const Value& a, const Value& b, int line);
  bool compare(std::string_view op, const Value& a, const Value& b, int line);
  bool contains(const Value& container, const Value& item, int line);
  // Positional and named arguments in the order of `names`; nullopt where none was given.
  std::vector<std::optional<Value>> bind(Args& args, std::string_view callee,
                                         std::initializer_list<std::string_view> names, size_t required = 0);
  std::time_t now() const { return now_; }
  const Limits& limits() const { return limits_; }

 private:
  enum class Flow { Normal, Break, Continue };
  class Deeper;  // counts recursion

  // jinja_exec.cpp
  Flow exec(const Block& block);
  Flow exec(const Stmt& stmt);
  Flow exec_if(const Stmt& stmt);
  Flow exec_for(const Stmt& stmt);
  Flow exec_with(const Stmt& stmt);
  void exec_macro(const Stmt& stmt);
  Flow exec_scoped(const Block& block, std::shared_ptr<Scope> scope);
  Value capture(const Block& block, std::shared_ptr<Scope> scope, int line);
  Value filtered(const Expr* filters, const Value& input);
  bool fill(Loop& loop, size_t count);
  void assign(const Target& target, Value value, int line);
  void write(const TaintedText& text, int line);

  // jinja_eval.cpp
  Value eval(const Expr& expr);
  Value eval_node(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_sequence(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_concat(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_conditional(const Expr& expr);
  Value eval_item(const Expr& expr);
  Value eval_sign(const Expr& expr);
  Value eval_filter(const Expr& expr, const Value* input);
  Args eval_args(const Expr& expr, size_t skip);
  Value slice(const Value& object, const Expr& range);

  // jinja_call.cpp
  Value call_macro(const Callable& callee, Args args);
  Value call_global(const std::string& name, Args args);
  Value call_method(const Callable& callee, Args args);
  Value loop_attribute(const LoopPtr& loop, std::string_view name, int line);
  Value new_namespace(const Args& args);
  Value range(Args& args);

  Limits limits_;
  std::time_t now_;
  int64_t steps_ = 0;
  size_t text_bytes_ = 0;
  int depth_ = 0;
  std::optional<Error> error_{};
  std::shared_ptr<Scope> root_ = std::make_shared<Scope>();
  std::shared_ptr<Scope> scope_ = root_;
  TextBuilder* out_ = nullptr;
  // Everything that can be part of a cycle of pointers; emptied at the end.
  std::vector<std::shared_ptr<Scope>> captured_{};
  std::vector<NamespacePtr> namespaces_{};
};

// Methods of texts, lists and dicts (jinja_methods.cpp, jinja_text_methods.cpp).
bool has_method(const Value& object, std::string_view name);
Value call_builtin_method(Interp& in, const Value& self, std::string_view name, Args args);
using TextMethod = Value (*)(Interp&, const TaintedText&, Args&);
TextMethod find_text_method(std::string_view name);

using Filter = Value (*)(Interp&, const Value&, Args&);
Filter find_text_filter(std::string_view name);      // jinja_text_filters.cpp
Filter find_sequence_filter(std::string_view name);  // jinja_sequence_filters.cpp

// Python's json.dumps as Hugging Face's `tojson` filter calls it (jinja_json.cpp).
Value to_json(Interp& in, const Value& value, Args& args);
// "..." % value and "...".format(...) (jinja_format.cpp).
Value percent_format(Interp& in, const TaintedText& format, const Value& value, int line);
Value brace_format(Interp& in, const TaintedText& format, const Args& args);

// Shared by methods and filters (jinja_text_ops.cpp).
struct TextOps {
  static TaintedText strip(const TaintedText& text, const std::optional<Value>& characters, bool left, bool right);
  static TaintedText replace(const TaintedText& text, const TaintedText& from, const TaintedText& to, int64_t count);
  static TaintedText map(const TaintedText& text, std::string (*mapped)(char32_t));
  static TaintedText capitalize(const TaintedText& text);
  static TaintedText title(const TaintedText& text);
  // Byte positions of the characters, and the text's size as the last.
  static std::vector<size_t> boundaries(const std::string& valid_text);
};

}  // namespace plumb::jinja

// A parsed template.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/jinja_value.h"

namespace plumb::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Block = std::vector<std::unique_ptr<Stmt>>;

enum class ExprKind {
  Constant,
  Name,
  List,
  Tuple,
  Dict,  // keys and values alternate in args
  Concat,
  Binary,   // text: the operator
  Compare,  // args[0] ops[0] args[1] ops[1] args[2] ...
  And,
  Or,
  Not,
  Negative,
  Positive,
  Conditional,  // args: condition, then, else or null
  Attribute,    // args[0] . text
  Item,         // args[0] [ args[1] ]
  Slice,        // args: begin, end, step, each may be null
  Call,         // args[0] is called with the others
  Filter,       // text; args[0] is the input, null within a filter block
  Test,         // text; args[0] is the subject
};

struct Keyword {
  std::string name{};
  ExprPtr value{};
};

struct Expr {
  ExprKind kind = ExprKind::Constant;
  int line = 0;
  int depth = 1;  // of the tree below: bounded, since walking it recurses
  std::string text{};
  Value constant{};
  std::vector<ExprPtr> args{};
  std::vector<std::string> ops{};
  std::vector<Keyword> keywords{};
  ExprPtr star_args{};
  ExprPtr star_keywords{};
};

// What is assigned to: a name, a namespace's member, or a tuple of targets.
struct Target {
  std::string name{};
  std::string member{};         // of the namespace `name`
  std::vector<Target> parts{};  // a tuple
};

enum class StmtKind { Data, Output, If, For, Set, SetBlock, Macro, FilterBlock, With, Plain, Break, Continue };

struct Macro {
  std::string name{};
  std::vector<std::string> parameters{};
  std::vector<ExprPtr> defaults{};  // of the last parameters
  Block body{};
  bool takes_varargs = false;  // the body uses `varargs`, or `kwargs`
  bool takes_kwargs = false;
  int line = 0;
};

struct Stmt {
  StmtKind kind = StmtKind::Data;
  int line = 0;
  std::string data{};
  ExprPtr expr{};    // output; condition; iterable; assigned value; filter
  ExprPtr filter{};  // a for loop's `if`; the filter of a set block
  Target target{};
  std::vector<Target> names{};    // With: what is assigned
  std::vector<ExprPtr> values{};  // With
  Block body{};
  Block other{};  // else
  std::unique_ptr<Macro> macro{};
};

}  // namespace plumb::jinja

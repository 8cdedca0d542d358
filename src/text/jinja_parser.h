#pragma once

#include <string_view>

#include "base/result.h"
#include "text/jinja_ast.h"

namespace plumb::jinja {

struct Template {
  Block body{};
};

// Everything this engine doesn't do is refused here, with the line.
Result<Template> parse_template(std::string_view source);

}  // namespace plumb::jinja

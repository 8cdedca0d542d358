// tools, tool_choice and parallel_tool_calls. Included by .cpp files only.
#pragma once

#include "serve/fields.h"
#include "serve/openai_request.h"

namespace plumb {

void read_tools(Fields& fields, ToolRequest& tools);

}  // namespace plumb

// The fields that ask for structured output, in OpenAI's form and in vLLM's and SGLang's. Included by .cpp files only.
#pragma once

#include "serve/fields.h"
#include "serve/openai_request.h"

namespace plumb {

// At most one of them may be given. Remembers in `constraint.field` which one, since errors inside name it.
void read_constraint(Fields& fields, ConstraintField& constraint);

}  // namespace plumb

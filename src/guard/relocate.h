// One launch's arguments copied elsewhere: to memory that kernels of a device reach.
#pragma once

#include "guard/op_args.h"

namespace plumb {

class Storage;

// All but the weights, which stay where they are. `args` lie in host memory, as a record's do: tensors without gaps,
// pages numbered through.
AnyArgs relocate(const AnyArgs& args, Storage& to);

}  // namespace plumb

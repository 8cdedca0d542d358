// One launch's arguments as one block of memory: what travels to a device and back in one copy each.
#pragma once

#include <cstddef>

#include "guard/op_args.h"

namespace plumb {

struct Relocated {
  AnyArgs args{};
  size_t bytes = 0;  // of the block
};

// `args` with everything but the weights in a block at `base`: tensors, caches, lists. `args` lie in host memory, as a
// record's do: tensors without gaps, pages numbered through. The contents are copied to `to`, which has the block's
// layout; null: nothing is, so with both null the block's size is what one learns.
Relocated relocate(const AnyArgs& args, std::byte* to, std::byte* base);

}  // namespace plumb

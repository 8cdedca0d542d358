#include <algorithm>

#include "ops/kernel.h"

namespace plumb {

const Kernel* Registry::find(std::string_view name) const {
  for (const Kernel& kernel : kernels)
    if (kernel.contract.name == name) return &kernel;
  return nullptr;
}

const Conversion* Registry::conversion(Layout to, const Format& format) const {
  for (const Conversion& c : conversions)
    if (c.to == to && !c.rounding && std::find(c.formats.begin(), c.formats.end(), format) != c.formats.end())
      return &c;
  return nullptr;
}

}  // namespace plumb

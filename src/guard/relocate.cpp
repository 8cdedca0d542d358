#include "guard/relocate.h"

#include <cstring>

#include "guard/args_codec.h"
#include "guard/op_record.h"

namespace plumb {
namespace {

// A codec of args_codec.h that replaces what it is shown by a copy.
class Copier {
 public:
  explicit Copier(Storage& to) : to_(to) {}
  template <class T>
  void scalar(const char*, T&) {}
  template <class T>
  void array(const char*, const T*& values, int64_t count) {
    if (values != nullptr) values = static_cast<const T*>(copy(values, count * static_cast<int64_t>(sizeof(T))));
  }
  void cache(const char*, std::byte*& pages, int64_t bytes) {
    if (pages != nullptr) pages = static_cast<std::byte*>(copy(pages, bytes));
  }
  void source(const char*, Tensor& x, const Tensor&) { tensor(x); }
  void tensor(Tensor& x) { x.data = copy(x.data, x.bytes()); }

 private:
  void* copy(const void* from, int64_t bytes) {
    return std::memcpy(to_.take(static_cast<size_t>(bytes)), from, static_cast<size_t>(bytes));
  }
  Storage& to_;
};

}  // namespace

AnyArgs relocate(const AnyArgs& args, Storage& to) {
  AnyArgs copy = args;
  Copier copier(to);
  // Before the tensors: a gather's source is as large as it says, not as its result.
  std::visit([&](auto& a) { args_codec::fields(a, copier); }, copy);
  for_tensors(copy, [&](const char*, Tensor& tensor, Role) { copier.tensor(tensor); });
  return copy;
}

}  // namespace plumb

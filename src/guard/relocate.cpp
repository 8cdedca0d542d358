#include "guard/relocate.h"

#include <cstring>

#include "guard/args_codec.h"

namespace plumb {
namespace {

constexpr int64_t kApart = 256;  // what kernels ask of a device's memory

// A codec of args_codec.h that puts what it is shown into the block.
class Mover {
 public:
  Mover(std::byte* to, std::byte* base) : to_(to), base_(base) {}
  template <class T>
  void scalar(const char*, T&) {}
  template <class T>
  void array(const char*, const T*& values, int64_t count) {
    if (values != nullptr) values = static_cast<const T*>(move(values, count * static_cast<int64_t>(sizeof(T))));
  }
  void cache(const char*, std::byte*& pages, int64_t bytes) {
    if (pages != nullptr) pages = static_cast<std::byte*>(move(pages, bytes));
  }
  void source(const char*, Tensor& x, const Tensor&) { tensor(x); }
  void tensor(Tensor& x) { x.data = move(x.data, x.bytes()); }
  int64_t bytes() const { return next_; }

 private:
  void* move(const void* from, int64_t bytes) {
    const int64_t at = next_;
    next_ += (bytes + kApart - 1) / kApart * kApart;
    if (to_ != nullptr) std::memcpy(to_ + at, from, static_cast<size_t>(bytes));
    return base_ == nullptr ? nullptr : base_ + at;
  }
  std::byte *to_, *base_;
  int64_t next_ = 0;
};

}  // namespace

Relocated relocate(const AnyArgs& args, std::byte* to, std::byte* base) {
  Relocated moved{.args = args};
  Mover mover(to, base);
  // Before the tensors: a gather's source is as large as it says, not as its result.
  std::visit([&](auto& a) { args_codec::fields(a, mover); }, moved.args);
  for_tensors(moved.args, [&](const char*, Tensor& tensor, Role) { mover.tensor(tensor); });
  moved.bytes = static_cast<size_t>(mover.bytes());
  return moved;
}

}  // namespace plumb

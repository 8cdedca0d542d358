#include "device/host_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "device/memory.h"

namespace plumb {

Result<std::shared_ptr<std::byte>> allocate_host(size_t bytes, const char* purpose) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const auto failed = [&](const char* why) {
    return Error{Code::Environment,
                 "cannot get " + std::to_string(bytes) + " bytes of memory for " + purpose,
                 why,
                 {"a shorter --context", "fewer --max-batch-tokens", "a machine with more memory"}};
  };
  if (bytes > SIZE_MAX / 2) return failed("that is more than the address space");
  const size_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return failed(std::strerror(errno));
  const auto address = reinterpret_cast<uintptr_t>(base);
  auto* aligned = reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
  // Only a wish: without huge pages everything still works.
  if (bytes >= kHugePage) madvise(aligned, size - kHugePage, MADV_HUGEPAGE);
  return std::shared_ptr<std::byte>(aligned, [base, size](std::byte*) { munmap(base, size); });
}

namespace {

void copy(void* to, const void* from, size_t bytes, Stream&) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void zero(void* to, size_t bytes, Stream&) { std::memset(to, 0, bytes); }
void nothing(Stream&) {}

}  // namespace

Memory host_memory() {
  return {.where = Where::Host,
          .allocate = allocate_host,
          .allocate_staging = allocate_host,
          .upload = copy,
          .download = copy,
          .clear = zero,
          .synchronise = nothing};
}

}  // namespace plumb

// Any bytes as a safetensors file: refused, or every tensor lies inside and they tile the data.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view image(reinterpret_cast<const char*>(data), size);
  const auto header = plumb::parse_safetensors_header(image, size, "fuzz.safetensors");
  if (!header) {
    PLUMB_CHECK(!header.error().to_string().empty(), "a refusal says why");
    return 0;
  }
  uint64_t end = 0;
  for (const plumb::TensorInfo& tensor : header->tensors) {
    PLUMB_CHECK(tensor.begin == end && tensor.end >= tensor.begin, "tensors tile the data");
    end = tensor.end;
    PLUMB_CHECK(static_cast<uint64_t>(tensor.elements()) * static_cast<uint64_t>(plumb::bits(tensor.dtype)) ==
                    8 * tensor.bytes(),
                "shape and offsets agree");
  }
  PLUMB_CHECK(header->data_begin + end == size, "the last tensor ends at the file's end");
  return 0;
}

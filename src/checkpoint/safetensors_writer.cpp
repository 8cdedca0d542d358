#include <cerrno>
#include <cstring>
#include <utility>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "checkpoint/safetensors.h"

namespace plumb {
namespace {

std::string header_text(std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata) {
  // Written by hand in the order of the data; the library only quotes strings.
  const auto quoted = [](const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  std::string text = "{";
  const auto comma = [&text] {
    if (text.size() > 1) text += ',';
  };
  if (!metadata.empty()) {
    std::string body;
    for (const auto& [key, value] : metadata) {
      if (!body.empty()) body += ',';
      body += quoted(key) + ":" + quoted(value);
    }
    text += "\"__metadata__\":{" + body + "}";
  }
  uint64_t offset = 0;
  for (TensorInfo& tensor : tensors) {
    tensor.begin = offset;
    offset += static_cast<uint64_t>(tensor.elements()) * static_cast<uint64_t>(bits(tensor.dtype)) / 8;
    tensor.end = offset;
    comma();
    text += quoted(tensor.name) + ":{\"dtype\":\"" + std::string(dtype_name(tensor.dtype)) + "\",\"shape\":[";
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      if (i != 0) text += ',';
      text += std::to_string(tensor.shape[i]);
    }
    text += "],\"data_offsets\":[" + std::to_string(tensor.begin) + "," + std::to_string(tensor.end) + "]}";
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data section starts at a multiple of 8
  return text;
}

}  // namespace

Error SafetensorsWriter::failed(std::string_view doing) {
  const int code = errno;
  if (file_ != nullptr) std::fclose(std::exchange(file_, nullptr));
  std::remove(part_.c_str());
  return Error{Code::Environment, path_.string() + ": cannot " + std::string(doing), std::strerror(code),
               code == ENOSPC
                   ? std::vector<std::string>{"free " + std::to_string(total_ - written_) + " bytes or write elsewhere"}
                   : std::vector<std::string>{}};
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer;
  writer.path_ = path;
  writer.part_ = path.string() + ".part";
  writer.tensors_ = std::move(tensors);
  const std::string header = header_text(writer.tensors_, metadata);
  writer.total_ = writer.tensors_.empty() ? 0 : writer.tensors_.back().end;
  writer.file_ = std::fopen(writer.part_.c_str(), "wb");
  if (writer.file_ == nullptr) return writer.failed("create");
  const uint64_t size = header.size();
  if (std::fwrite(&size, 8, 1, writer.file_) != 1 || std::fwrite(header.data(), 1, size, writer.file_) != size) {
    return writer.failed("write the header");
  }
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      part_(std::move(other.part_)),
      tensors_(std::move(other.tensors_)),
      file_(std::exchange(other.file_, nullptr)),
      written_(other.written_),
      total_(other.total_) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::remove(part_.c_str());
}

Status SafetensorsWriter::write(const void* data, size_t bytes) {
  PLUMB_CHECK(file_ != nullptr, "the writer has finished or failed");
  PLUMB_CHECK(bytes <= total_ - written_, "more data than the layout has");
  if (std::fwrite(data, 1, bytes, file_) != bytes) return failed("write");
  written_ += bytes;
  return Ok{};
}

Status SafetensorsWriter::finish() {
  PLUMB_CHECK(file_ != nullptr, "the writer has finished or failed");
  PLUMB_CHECK(written_ == total_, "less data than the layout has");
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) return failed("write");
  if (std::fclose(std::exchange(file_, nullptr)) != 0) return failed("write");
  if (std::rename(part_.c_str(), path_.c_str()) != 0) return failed("rename the finished file");
  return Ok{};
}

}  // namespace plumb

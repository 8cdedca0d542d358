#include "variant_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tensor/encode.h"

namespace plumb::testing {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "plumb-model-XXXXXX").string();
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  path_ = name;
}
TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

EditableCheckpoint::EditableCheckpoint(const std::string& folder) {
  std::ifstream text(folder + "/config.json");
  config_ = std::make_unique<nlohmann::json>(nlohmann::json::parse(text));
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors" || entry.path().filename() == "golden.safetensors") continue;
    auto file = SafetensorsFile::open(entry.path());
    EXPECT_TRUE(file) << file.error().to_string();
    for (const TensorInfo& info : file->tensors())
      tensors.push_back({.info = info, .bytes = {file->data(info), file->data(info) + info.bytes()}});
  }
}
EditableCheckpoint::~EditableCheckpoint() = default;

EditableTensor* EditableCheckpoint::find(const std::string& name) {
  for (EditableTensor& tensor : tensors)
    if (tensor.info.name == name) return &tensor;
  return nullptr;
}

void EditableCheckpoint::write(const std::string& folder) const {
  std::ofstream(folder + "/config.json") << config_->dump(1);
  std::vector<TensorInfo> infos;
  for (const EditableTensor& tensor : tensors) infos.push_back(tensor.info);
  auto writer = SafetensorsWriter::create(folder + "/model.safetensors", infos);
  ASSERT_TRUE(writer) << writer.error().to_string();
  for (const EditableTensor& tensor : tensors) ASSERT_TRUE(writer->write(tensor.bytes.data(), tensor.bytes.size()));
  ASSERT_TRUE(writer->finish());
}

void EditableCheckpoint::apply(const nlohmann::json& recipe) {
  if (recipe.contains("config")) config_->update(recipe.at("config"));
  for (const auto& step : recipe.value("edits", nlohmann::json::array())) edit(step);
}

namespace {

template <class T, class F>
void each(EditableTensor& tensor, F change) {
  for (size_t at = 0; at + sizeof(T) <= tensor.bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, tensor.bytes.data() + at, sizeof value);
    value = change(value);
    std::memcpy(tensor.bytes.data() + at, &value, sizeof value);
  }
}

void change_numbers(EditableTensor& tensor, const std::string& op, float by) {
  const auto change = [&](float value) { return op == "add" ? value + by : value * by; };
  if (tensor.info.dtype == DType::BF16)
    each<uint16_t>(tensor, [&](uint16_t code) { return f32_to_bf16(change(bf16_to_f32(code))); });
  else
    each<float>(tensor, change);
}

}  // namespace

void EditableCheckpoint::edit(const nlohmann::json& step) {
  const std::string op = step.at("op");
  if (op == "copy_layer") {
    const std::string from = "model.layers." + std::to_string(step.at("from").get<int>()) + ".";
    const std::string to = "model.layers." + std::to_string(step.at("to").get<int>()) + ".";
    const size_t count = tensors.size();
    for (size_t i = 0; i < count; ++i) {
      if (!tensors[i].info.name.starts_with(from)) continue;
      EditableTensor copy = tensors[i];
      copy.info.name = to + copy.info.name.substr(from.size());
      tensors.push_back(std::move(copy));
    }
    return;
  }
  int found = 0;
  for (EditableTensor& tensor : tensors) {
    const auto matches = [&](const nlohmann::json& end) { return tensor.info.name.ends_with(end.get<std::string>()); };
    if (std::none_of(step.at("suffixes").begin(), step.at("suffixes").end(), matches)) continue;
    ++found;
    if (op == "set_bytes") {
      const size_t every = step.at("every");
      for (size_t at = step.value("first", size_t{0}); at < tensor.bytes.size(); at += every)
        tensor.bytes[at] = static_cast<std::byte>(step.at("value").get<int>());
    } else {
      change_numbers(tensor, op, step.at("value").get<float>());
    }
  }
  EXPECT_GT(found, 0) << step.dump();
}

}  // namespace plumb::testing

// Folders of shards (formats.md 4.3; field-faults section 3: missing shards, short shards, indexes that lie).
#include "checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <cstdlib>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint/json_file.h"
#include "checkpoint/mapping_guard.h"
#include "checkpoint/model_source.h"
#include "support/folder.h"
#include "support/paths.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;
using testing::read_file;
using testing::safetensors_image;
using testing::TemporaryFolder;
using testing::write_file;

std::string shard(const std::string& tensor) {
  return safetensors_image("{\"" + tensor + R"(":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8);
}

// Three shards and their index.
void write_model(const fs::path& folder) {
  write_file(folder / "model-1.safetensors", shard("model.a"));
  write_file(folder / "model-2.safetensors", shard("model.b"));
  write_file(folder / "model-3.safetensors", shard("model.c"));
  write_file(
      folder / "model.safetensors.index.json",
      R"({"metadata":{"total_size":24},"weight_map":{"model.a":"model-1.safetensors","model.b":"model-2.safetensors","model.c":"model-3.safetensors"}})");
}

void expect_error(const fs::path& folder, Code code, std::string_view words) {
  const auto checkpoint = Checkpoint::open(folder);
  ASSERT_FALSE(checkpoint) << words;
  EXPECT_EQ(checkpoint.error().code, code) << checkpoint.error().to_string();
  EXPECT_NE(checkpoint.error().to_string().find(words), std::string::npos) << checkpoint.error().to_string();
}

TEST(Checkpoint, OpensShards) {
  TemporaryFolder folder;
  write_model(folder.path());
  auto opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened) << opened.error().to_string();
  const CheckpointTensor* before = opened->find("model.b");
  const Checkpoint checkpoint = *std::move(opened);
  ASSERT_NE(checkpoint.find("model.b"), nullptr);
  EXPECT_EQ(checkpoint.find("model.b"), before);  // pointers survive a move
  EXPECT_EQ(checkpoint.find("model.b")->data[7], std::byte{1});
  EXPECT_EQ(checkpoint.find("model.d"), nullptr);
  EXPECT_EQ(checkpoint.total_bytes(), 24u);
  EXPECT_TRUE(checkpoint.warnings().empty());
}

TEST(Checkpoint, MissingShardsAreAllNamed) {
  TemporaryFolder folder;
  write_model(folder.path());
  fs::remove(folder / "model-2.safetensors");
  expect_error(folder.path(), Code::Corrupt, "1 of the 3");
  expect_error(folder.path(), Code::Corrupt, "model-2.safetensors");
  fs::remove(folder / "model-3.safetensors");
  expect_error(folder.path(), Code::Corrupt, "model-2.safetensors, model-3.safetensors");
}

TEST(Checkpoint, ShortAndLongShardsAreRefused) {
  TemporaryFolder folder;
  write_model(folder.path());
  const std::string whole = read_file(folder / "model-2.safetensors");
  for (const std::string& bad :
       {whole.substr(0, whole.size() - 1), whole.substr(0, whole.size() - 8), whole + std::string(16, '\0')}) {
    write_file(folder / "model-2.safetensors", bad);
    expect_error(folder.path(), Code::Corrupt, "model-2.safetensors");
  }
}

TEST(Checkpoint, IndexAndShardsMustBelongTogether) {
  TemporaryFolder folder;
  write_model(folder.path());
  write_file(folder / "model-2.safetensors", shard("model.other"));
  expect_error(folder.path(), Code::Corrupt, "'model.b' (model-2.safetensors)");
  write_file(folder / "model-2.safetensors", shard("model.a"));
  expect_error(folder.path(), Code::Corrupt, "are in both model-1.safetensors and model-2.safetensors: model.a");
}

TEST(Checkpoint, AnIndexCannotLeaveItsFolder) {
  TemporaryFolder folder;
  write_model(folder.path());
  for (const char* name : {"../model-1.safetensors", "/etc/passwd", "a/b.safetensors", "a\\\\b.safetensors", "..", "",
                           "x\\u0000.safetensors", "config.json"}) {
    write_file(folder / "model.safetensors.index.json", std::string(R"({"weight_map":{"model.a":")") + name + "\"}}");
    expect_error(folder.path(), Code::Corrupt, "not a plain .safetensors file name");
  }
  for (const char* index :
       {"{}", "[]", "{\"weight_map\":[]}", "{\"weight_map\":{}}", "{\"weight_map\":{\"a\":1}}", "{", "",
        R"({"weight_map":{"model.a":"model-1.safetensors","model.a":"model-2.safetensors"}})"}) {
    write_file(folder / "model.safetensors.index.json", index);
    const auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_FALSE(checkpoint) << index;
    EXPECT_EQ(checkpoint.error().code, Code::Corrupt) << index;
  }
}

TEST(Checkpoint, ASeparateMtpFileJoinsWithAWarningAndOthersDoNot) {
  TemporaryFolder folder;
  write_model(folder.path());
  write_file(folder / "mtp.safetensors", shard("model.layers.4.eh_proj.weight"));
  write_file(folder / "golden.safetensors", shard("logits"));
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  ASSERT_NE(checkpoint->find("model.layers.4.eh_proj.weight"), nullptr);
  EXPECT_FALSE(checkpoint->find("model.layers.4.eh_proj.weight")->in_index);
  EXPECT_EQ(checkpoint->find("logits"), nullptr);
  ASSERT_FALSE(checkpoint->warnings().empty());
  EXPECT_NE(checkpoint->warnings().front().find("mtp.safetensors"), std::string::npos);
}

TEST(Checkpoint, SymbolicLinksIntoACacheAreFollowed) {
  TemporaryFolder folder;
  write_file(folder / "blobs" / "0123", shard("model.a"));
  fs::create_directories(folder / "model");
  fs::create_symlink(folder / "blobs" / "0123", folder / "model" / "model.safetensors");
  const auto checkpoint = Checkpoint::open(folder / "model");
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  EXPECT_NE(checkpoint->find("model.a"), nullptr);
}

TEST(Checkpoint, AFolderWithoutTensorsSaysWhatItHas) {
  TemporaryFolder folder;
  expect_error(folder.path(), Code::NotFound, "there are no .safetensors files");
  write_file(folder / "other.safetensors", shard("x"));
  expect_error(folder.path(), Code::Corrupt, "other.safetensors");
  expect_error(folder / "none", Code::NotFound, "is not a folder");
}

TEST(Checkpoint, TheHashFollowsNamesShapesAndPlaces) {
  TemporaryFolder a, b;
  write_model(a.path());
  write_model(b.path());
  const auto hash = [](const fs::path& folder) { return Checkpoint::open(folder)->identity_hash(); };
  EXPECT_EQ(hash(a.path()), hash(b.path()));
  write_file(b / "model-3.safetensors",
             safetensors_image(R"({"model.c":{"dtype":"I8","shape":[8],"data_offsets":[0,8]}})", 8));
  EXPECT_NE(hash(a.path()), hash(b.path()));
}

TEST(Checkpoint, HeadersAloneMakeACheckpointWithoutData) {
  const auto checkpoint =
      Checkpoint::from_headers({{.name = "a", .dtype = DType::U8, .shape = {4}, .begin = 0, .end = 4}});
  ASSERT_TRUE(checkpoint);
  EXPECT_FALSE(checkpoint->has_data());
  EXPECT_EQ(checkpoint->find("a")->data, nullptr);
  EXPECT_FALSE(Checkpoint::from_headers({{.name = "a"}, {.name = "a"}}));
}

TEST(ModelSource, FoldersAndCacheNames) {
  TemporaryFolder folder;
  const fs::path repository = folder / "hub" / "models--zai-org--GLM-5";
  write_file(repository / "refs" / "main", "abc123\n");
  write_file(repository / "snapshots" / "abc123" / "config.json", "{}");
  write_file(repository / "snapshots" / "def456" / "config.json", "{}");
  const auto main = resolve_model("zai-org/GLM-5", folder.path());
  ASSERT_TRUE(main) << main.error().to_string();
  EXPECT_EQ(main->folder, repository / "snapshots" / "abc123");
  EXPECT_EQ(main->name, "zai-org/GLM-5");
  EXPECT_EQ(main->revision, "abc123");
  const auto commit = resolve_model("zai-org/GLM-5@def456", folder.path());
  ASSERT_TRUE(commit) << commit.error().to_string();
  EXPECT_EQ(commit->folder, repository / "snapshots" / "def456");
  const auto plain = resolve_model((repository / "snapshots" / "def456").string() + "/", {});
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->name, "def456");
}

TEST(ModelSource, WhatIsNotThereIsSaidWithThePlacesLookedAt) {
  TemporaryFolder folder;
  write_file(folder / "hub" / "models--a--b" / "snapshots" / "111" / "config.json", "{}");
  write_file(folder / "file.gguf", "x");
  const auto words = [&](std::string_view argument, const fs::path& home) {
    const auto source = resolve_model(argument, home);
    EXPECT_FALSE(source) << argument;
    return source ? std::string() : source.error().to_string();
  };
  EXPECT_NE(words("a/c", folder.path()).find("models--a--c"), std::string::npos);
  EXPECT_NE(words("a/b@222", folder.path()).find("111"), std::string::npos);
  EXPECT_NE(words("a/b", {}).find("HF_HOME"), std::string::npos);
  EXPECT_NE(words((folder / "file.gguf").string(), folder.path()).find("is a file"), std::string::npos);
  for (const char* bad : {"", "GLM-5", "../x/y", "a/../b", "a/b@../../etc", "a/b@", "/nowhere/model"})
    words(bad, folder.path());
}

// A shard cut short after it was mapped ends the process with the exit code of a broken checkpoint and its name.
TEST(MappingGuard, AShardThatShrinksIsNamed) {
  TemporaryFolder folder;
  const size_t pages = 16 * 4096;
  write_file(folder / "model.safetensors",
             safetensors_image(R"({"model.a":{"dtype":"U8","shape":[65536],"data_offsets":[0,65536]}})", pages));
  EXPECT_EXIT(
      {
        install_mapping_guard();
        const auto checkpoint = Checkpoint::open(folder.path());
        fs::resize_file(folder / "model.safetensors", 4096);
        const volatile std::byte* data = checkpoint->find("model.a")->data;
        std::exit(static_cast<int>(data[pages - 1]));
      },
      ::testing::ExitedWithCode(4), "model.safetensors: byte .* of .* cannot be read any more");
}

TEST(TextFiles, OnlyRegularFilesAreRead) {
  TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "config.json").c_str(), 0600), 0);
  const auto fifo = read_json(folder / "config.json");
  ASSERT_FALSE(fifo);
  EXPECT_NE(fifo.error().to_string().find("not a regular file"), std::string::npos);
  EXPECT_FALSE(read_json(folder.path()));
  EXPECT_FALSE(read_json("/dev/zero"));
}

TEST(StrictJson, RefusesWhatPlainParsersLetPass) {
  EXPECT_FALSE(parse_json(R"({"a":1,"a":2})", "f"));
  EXPECT_FALSE(parse_json(R"({"x":{"a":1,"\u0061":2}})", "f"));
  EXPECT_FALSE(parse_json(std::string(100, '[') + std::string(100, ']'), "f"));
  EXPECT_FALSE(parse_json(std::string(1'000'000, '['), "f"));
  EXPECT_FALSE(parse_json("{\"a\":\"\xff\"}", "f"));
  EXPECT_FALSE(parse_json("{\"a\":1e999}", "f"));
  EXPECT_FALSE(parse_json("{} x", "f"));
  EXPECT_FALSE(parse_json("", "f"));
  EXPECT_FALSE(parse_json("[NaN]", "f"));
  EXPECT_TRUE(parse_json(R"({"a":[1,2.5,null,"x",{"b":true}]})", "f"));
}

}  // namespace
}  // namespace plumb

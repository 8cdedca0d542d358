// The container's rules (formats.md 4.2, 4.4): each broken file is refused with words that name what is wrong.
#include "checkpoint/safetensors.h"

#include <csignal>
#include <cstring>
#include <random>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "support/folder.h"

namespace plumb {
namespace {

using testing::read_file;
using testing::safetensors_image;
using testing::TemporaryFolder;
using testing::write_file;

Result<SafetensorsHeader> parse(const std::string& image) {
  return parse_safetensors_header(image, image.size(), "x.safetensors");
}

void expect_refused(const std::string& image, std::string_view words, Code code = Code::Corrupt) {
  const auto header = parse(image);
  ASSERT_FALSE(header) << words;
  EXPECT_EQ(header.error().code, code) << header.error().to_string();
  EXPECT_NE(header.error().to_string().find(words), std::string::npos) << header.error().to_string();
  EXPECT_NE(header.error().what.find("x.safetensors"), std::string::npos);
}

std::string with_length(uint64_t length, std::string_view rest = "{}") {
  std::string image(8, '\0');
  std::memcpy(image.data(), &length, 8);
  return image.append(rest);
}

TEST(Safetensors, ReadsWhatTheFormatAllows) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F8_E8M0","shape":[2,3],"data_offsets":[4,10]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"none":{"dtype":"BF16","shape":[0,7],"data_offsets":[10,10]},)"
      R"("packed":{"dtype":"F4","shape":[4],"data_offsets":[10,12]}}    )";
  const auto parsed = parse(safetensors_image(header, 12));
  ASSERT_TRUE(parsed) << parsed.error().to_string();
  ASSERT_EQ(parsed->tensors.size(), 4u);
  EXPECT_EQ(parsed->tensors[0].name, "a");  // in order of the data
  EXPECT_EQ(parsed->tensors[0].elements(), 1);
  EXPECT_EQ(parsed->tensors[1].dtype, DType::F8E8M0);
  EXPECT_EQ(parsed->tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(parsed->metadata.at("format"), "pt");
  EXPECT_TRUE(parse(safetensors_image("{}", 0)));
}

TEST(Safetensors, HeaderLengthZero) { expect_refused(with_length(0), "does not start with '{'"); }
TEST(Safetensors, HeaderLongerThanTheFile) { expect_refused(with_length(1000), "truncated"); }
TEST(Safetensors, HeaderAboveOneHundredMillion) { expect_refused(with_length(100'000'001), "at most 100,000,000"); }
TEST(Safetensors, HeaderLengthThatOverflowsWithEight) {
  expect_refused(with_length(~uint64_t{0} - 3), "at most 100,000,000");
}
TEST(Safetensors, FileShorterThanEightBytes) { expect_refused("abc", "at least 8"); }
TEST(Safetensors, GitLfsPointerIsSaid) {
  expect_refused("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "Git LFS pointer");
}

struct BrokenHeader {
  const char* name;
  const char* header;
  size_t data;
  const char* words;
};

class SafetensorsHeaders : public ::testing::TestWithParam<BrokenHeader> {};

TEST_P(SafetensorsHeaders, AreRefused) {
  expect_refused(safetensors_image(GetParam().header, GetParam().data), GetParam().words);
}

INSTANTIATE_TEST_SUITE_P(
    Broken, SafetensorsHeaders,
    ::testing::Values(
        BrokenHeader{"NotAnObject", "[]", 0, "does not start with '{'"},
        BrokenHeader{"LeadingBlank", " {}", 0, "does not start with '{'"},
        BrokenHeader{"TrailingNewline", "{}\n", 0, "does not end with '}'"},
        BrokenHeader{"TrailingText", "{}{}", 0, "header byte"},
        BrokenHeader{
            "Overlap",
            R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
            6, "overlap"},
        BrokenHeader{
            "SameRangeTwice",
            R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
            4, "overlap"},
        BrokenHeader{
            "Hole",
            R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}})",
            10, "hole"},
        BrokenHeader{"FirstNotAtZero", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", 8, "hole"},
        BrokenHeader{"PastTheEnd", R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 4, "truncated"},
        BrokenHeader{"TrailingBytes", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 20,
                     "16 bytes belong to no tensor"},
        BrokenHeader{"DataWithoutTensors", "{}", 5, "5 bytes belong to no tensor"},
        BrokenHeader{"BeginAfterEnd", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4, "begin after"},
        BrokenHeader{"SizeNotOfTheShape", R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,15]}})", 15,
                     "needs 16 bytes"},
        BrokenHeader{"UnknownField", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})", 4,
                     "unknown field"},
        BrokenHeader{"MissingShape", R"({"a":{"dtype":"U8","data_offsets":[0,4]}})", 4, "lacks"},
        BrokenHeader{"ShapeOverflows", R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
                     4, "64-bit"},
        BrokenHeader{"ShapeWrapsToSmall",
                     R"({"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}})", 16, "64-bit"},
        BrokenHeader{"ShapeNegative", R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", 4,
                     "unsigned integers"},
        BrokenHeader{"ShapeFloat", R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", 4, "4.0"},
        BrokenHeader{"ShapeHugeInteger",
                     R"({"a":{"dtype":"U8","shape":[123456789012345678901234567890],"data_offsets":[0,4]}})", 4,
                     "unsigned integers"},
        BrokenHeader{"ShapeHugeExponent", R"({"a":{"dtype":"U8","shape":[1e400],"data_offsets":[0,4]}})", 4,
                     "header byte"},
        BrokenHeader{"ShapeAbove63Bits", R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4]}})",
                     4, "too large"},
        BrokenHeader{"ShapeNotAList", R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", 4, "field 'shape'"},
        BrokenHeader{"ShapeNested", R"({"a":{"dtype":"U8","shape":[[4]],"data_offsets":[0,4]}})", 4, "an array"},
        BrokenHeader{"NineDimensions", R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4]}})", 4,
                     "8 dimensions"},
        BrokenHeader{"OddF4", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2, "whole bytes"},
        BrokenHeader{"OneOffset", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4]}})", 4, "two numbers"},
        BrokenHeader{"ThreeOffsets", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,8]}})", 4,
                     "data_offsets holds"},
        BrokenHeader{
            "DuplicateTensor",
            R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
            8, "stands twice"},
        BrokenHeader{"DuplicateField", R"({"a":{"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]}})", 4,
                     "stands twice"},
        BrokenHeader{"DuplicateThroughEscape",
                     "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"\\u0061\":{\"dtype\":\"U8\","
                     "\"shape\":[4],\"data_offsets\":[4,8]}}",
                     8, "stands twice"},
        BrokenHeader{"NameNotUtf8", "{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
                     "header byte"},
        BrokenHeader{"NameWithHalfASurrogate", "{\"\\ud800\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
                     4, "header byte"},
        BrokenHeader{"NameWithControlCharacter",
                     "{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4,
                     "control characters"},
        BrokenHeader{"NameEmpty", R"({"":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4, "empty"},
        BrokenHeader{"MetadataNumber", R"({"__metadata__":{"n":1}})", 0, "not a string"},
        BrokenHeader{"MetadataNested", R"({"__metadata__":{"n":{"m":"x"}}})", 0, "not a string"},
        BrokenHeader{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
        BrokenHeader{"TensorIsNull", R"({"a":null})", 0, "not an object"},
        BrokenHeader{"NotClosed", R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})", 4, "header byte"}),
    [](const auto& one) { return one.param.name; });

TEST(Safetensors, UnknownElementTypeIsNamed) {
  expect_refused(safetensors_image(R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", 3), "'F6_E2M3'",
                 Code::Unsupported);
}

TEST(Safetensors, ManyNestedArraysEndQuickly) {
  expect_refused(safetensors_image("{\"a\":" + std::string(1'000'000, '[') + "}", 0), "an array");
}

TEST(Safetensors, NameOfAMegabyte) {
  expect_refused(
      safetensors_image("{\"" + std::string(1 << 20, 'n') + R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4),
      "too long");
}

std::string sample() {
  return safetensors_image(
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[3,2],"data_offsets":[0,12]},"s":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}} )",
      16);
}

// A file cut or extended anywhere is refused; nothing reads past its end.
TEST(Safetensors, EveryTruncationAndExtensionIsRefused) {
  const std::string image = sample();
  ASSERT_TRUE(parse(image));
  for (size_t length = 0; length < image.size(); ++length) EXPECT_FALSE(parse(image.substr(0, length))) << length;
  for (const size_t more : {1u, 16u, 4096u}) EXPECT_FALSE(parse(image + std::string(more, '\0'))) << more;
}

// Whatever a mutated header says, it is refused or every tensor lies inside the file and they tile it.
TEST(Safetensors, MutatedHeadersAreRefusedOrConsistent) {
  std::mt19937 random(11);
  const std::string image = sample();
  const std::string_view alphabet = "{}[]\",:0123456789.eE-+abUF_\\ \n\xff";
  int accepted = 0;
  for (int trial = 0; trial < 200'000; ++trial) {
    std::string mutated = image;
    const int edits = 1 + static_cast<int>(random() % 3);
    for (int e = 0; e < edits; ++e) {
      const size_t at = random() % 150 % mutated.size();
      switch (random() % 3) {
        case 0:
          mutated[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          mutated.erase(at, 1);
          break;
        default:
          mutated.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
      }
    }
    const auto header = parse(mutated);
    if (!header) continue;
    ++accepted;
    uint64_t end = 0;
    for (const TensorInfo& tensor : header->tensors) {
      ASSERT_EQ(tensor.begin, end);
      end = tensor.end;
    }
    ASSERT_EQ(header->data_begin + end, mutated.size());
  }
  EXPECT_GT(accepted, 0);
}

TEST(Safetensors, OpenMapsAFileAndRefusesWhatIsNone) {
  TemporaryFolder folder;
  write_file(folder / "a.safetensors", sample());
  const auto file = SafetensorsFile::open(folder / "a.safetensors");
  ASSERT_TRUE(file) << file.error().to_string();
  const TensorInfo* scale = file->find("s");
  ASSERT_NE(scale, nullptr);
  EXPECT_EQ(std::memcmp(file->data(*scale), "\x01\x01\x01\x01", 4), 0);
  EXPECT_EQ(file->find("t"), nullptr);
  EXPECT_EQ(SafetensorsFile::open(folder / "b.safetensors").error().code, Code::NotFound);
  EXPECT_FALSE(SafetensorsFile::open(folder.path()));
  write_file(folder / "empty.safetensors", "");
  EXPECT_FALSE(SafetensorsFile::open(folder / "empty.safetensors"));
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  TemporaryFolder folder;
  const std::filesystem::path path = folder / "out.safetensors";
  auto writer = SafetensorsWriter::create(
      path,
      {{.name = "scalar", .dtype = DType::F32, .shape = {}}, {.name = "quote\"d", .dtype = DType::U8, .shape = {3}}},
      {{"format", "pt"}});
  ASSERT_TRUE(writer) << writer.error().to_string();
  EXPECT_FALSE(std::filesystem::exists(path));  // only complete files have their name
  const float value = 1.5f;
  ASSERT_TRUE(writer->write(&value, 4));
  ASSERT_TRUE(writer->write("ab", 2));
  ASSERT_TRUE(writer->write("c", 1));
  ASSERT_TRUE(writer->finish());
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << file.error().to_string();
  EXPECT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(std::memcmp(file->data(*file->find("quote\"d")), "abc", 3), 0);
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_EQ((read_file(path).size() - 7) % 8, 0u);  // the data section starts at a multiple of 8
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".part"));
}

TEST(SafetensorsWriter, AnAbandonedOrFailedFileLeavesNothing) {
  TemporaryFolder folder;
  const std::filesystem::path path = folder / "out.safetensors";
  {
    auto writer = SafetensorsWriter::create(path, {{.name = "a", .dtype = DType::U8, .shape = {10}}});
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->write("12345", 5));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_FALSE(SafetensorsWriter::create(folder / "no" / "such" / "folder", {}));
}

// A full disk, played by the limit on file sizes.
TEST(SafetensorsWriter, AFullDiskIsAnErrorThatRemovesTheFile) {
  TemporaryFolder folder;
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 100'000, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  auto writer =
      SafetensorsWriter::create(folder / "out.safetensors", {{.name = "a", .dtype = DType::U8, .shape = {1'000'000}}});
  ASSERT_TRUE(writer);
  const std::vector<char> data(1'000'000, 'x');
  Status status = writer->write(data.data(), data.size());
  if (status) status = writer->finish();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_DFL);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Code::Environment);
  EXPECT_NE(status.error().what.find("out.safetensors"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace plumb

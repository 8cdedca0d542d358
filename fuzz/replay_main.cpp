// Runs a fuzz target over every file of the folders given: the kept corpus as a plain test.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// NOLINTNEXTLINE(bugprone-exception-escape): one that escapes from the target is a finding
int main(int argc, char** argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i], error)) {
      std::ifstream file(entry.path(), std::ios::binary);
      // No copy of the bytes is larger than they are, so that reading past the end is seen by the address sanitizer.
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
      const std::vector<uint8_t> input(bytes.begin(), bytes.end());
      std::fprintf(stderr, "%s\n", entry.path().c_str());  // the last one printed is the one that crashed
      LLVMFuzzerTestOneInput(input.data(), input.size());
      ++files;
    }
    if (error) std::fprintf(stderr, "%s: %s\n", argv[i], error.message().c_str());
  }
  std::printf("%d passed, %d failed\n", files, files == 0 ? 1 : 0);
  return files == 0 ? 1 : 0;
}

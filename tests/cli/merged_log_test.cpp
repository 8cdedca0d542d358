#include "cli/merged_log.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>

namespace plumb::testing {
namespace {

class MergedLog : public ::testing::Test {
 protected:
  static constexpr size_t kRanks = 3;

  void SetUp() override {
    for (auto& pair : pipes_) ASSERT_EQ(pipe(pair.data()), 0);
    ASSERT_EQ(pipe(out_.data()), 0);
    std::vector<int> ends;
    for (const auto& pair : pipes_) ends.push_back(pair[0]);
    merging_ = std::thread([ends, out = out_[1]] {
      merge_logs(ends, 1, out);
      close(out);
    });
  }
  // Ranks count from 1, as they would where rank 0 writes for itself.
  void say(size_t rank, const std::string& text) const {
    ASSERT_EQ(write(pipes_[rank - 1][1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  static void wait() { std::this_thread::sleep_for(std::chrono::milliseconds(400)); }
  std::string end() {
    for (const auto& pair : pipes_) close(pair[1]);
    std::string text;
    std::array<char, 256> bytes{};
    for (ssize_t got = 0; (got = read(out_[0], bytes.data(), bytes.size())) > 0;)
      text.append(bytes.data(), static_cast<size_t>(got));
    merging_.join();
    close(out_[0]);
    return text;
  }

 private:
  std::array<std::array<int, 2>, kRanks> pipes_{};
  std::array<int, 2> out_{};
  std::thread merging_{};
};

TEST_F(MergedLog, OneLineOfManyRanksIsWrittenOnce) {
  say(2, "2026-01-31T12:00:00.000 warning slow disk\n");
  say(1, "2026-01-31T12:00:00.017 warning slow disk\n");
  say(3, "2026-01-31T12:00:00.020 warning slow disk\n2026-01-31T12:00:00.021 error: lost\n");
  const std::string text = end();  // with whichever time was read first
  EXPECT_THAT(text, ::testing::MatchesRegex("2026-01-31T12:00:00.0[0-9]+ warning slow disk .ranks 1, 2, 3.\n"
                                            "2026-01-31T12:00:00.021 error: lost .rank 3.\n"));
}

TEST_F(MergedLog, TheSameLaterOrTwiceFromOneRankIsALineOfItsOwn) {
  say(1, "again\n");
  wait();
  say(2, "again\n");
  say(2, "again\n");
  EXPECT_EQ(end(), "again (rank 1)\nagain (rank 2)\nagain (rank 2)\n");
}

TEST_F(MergedLog, PiecesAreJoinedAndTheLastLineNeedsNoEnd) {
  say(3, "be");
  say(1, "other\n");
  say(3, "gun\nand cut");
  const std::string text = end();
  EXPECT_THAT(text, ::testing::HasSubstr("other (rank 1)\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("begun (rank 3)\n"));
  EXPECT_THAT(text, ::testing::EndsWith("and cut (rank 3)\n"));
}

}  // namespace
}  // namespace plumb::testing

#include "cli/watchdog.h"

#include <gtest/gtest.h>

namespace plumb {
namespace {

using Action = Watchdog::Action;

TEST(Watchdog, ReportsOnceAndGivesUpAfterItsTime) {
  Watchdog watchdog(1000);
  const Watchdog::Clock::time_point start{};
  const auto at = [&](int ms) { return start + std::chrono::milliseconds(ms); };
  EXPECT_EQ(watchdog.look(true, at(0)), Action::None);
  EXPECT_EQ(watchdog.look(false, at(250)), Action::Report);
  EXPECT_EQ(watchdog.look(false, at(500)), Action::None);
  EXPECT_EQ(watchdog.look(true, at(750)), Action::Recovered);
  EXPECT_EQ(watchdog.look(true, at(1000)), Action::None);
  EXPECT_EQ(watchdog.look(false, at(2000)), Action::Report);
  EXPECT_EQ(watchdog.look(false, at(2999)), Action::None);
  EXPECT_EQ(watchdog.look(false, at(3000)), Action::Exit);
}

TEST(Watchdog, NeverGivesUpWhenToldSo) {
  Watchdog watchdog(0);
  const Watchdog::Clock::time_point start{};
  EXPECT_EQ(watchdog.look(false, start), Action::Report);
  EXPECT_EQ(watchdog.look(false, start + std::chrono::hours(24)), Action::None);
}

}  // namespace
}  // namespace plumb

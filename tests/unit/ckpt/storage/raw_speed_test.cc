// tests/unit/ckpt/storage/raw_speed_test.cc: the measurement is bounded, leaves
// nothing behind, and adds up.

#include "ckpt/storage/raw_speed.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "ckpt/storage/storage_probe.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

TEST(RawSpeedTest, MeasuresBothDirectionsAndLeavesNothing) {
  const tests::TempDir dir;
  const auto speed =
      MeasureRawSpeed(dir.path(), {.bytes_max = 16 << 20, .depth = 4});
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_EQ(speed->bytes, 16 << 20);
  EXPECT_GT(speed->write_bytes_per_s, 0);
  const auto probe = ProbeStorage(dir.path());
  ASSERT_TRUE(probe.ok());
  EXPECT_EQ(speed->read_bytes_per_s > 0, probe->direct_io.ok());
  EXPECT_FALSE(speed->method.empty());
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

// Each look at it is a second later.
class FastClock final : public Clock {
 public:
  absl::Duration Monotonic() const override { return now += absl::Seconds(1); }
  absl::Time WallTime() const override { return absl::UnixEpoch(); }
  void Sleep(absl::Duration) override {}
  mutable absl::Duration now;
};

TEST(RawSpeedTest, StopsWhenItsTimeIsOver) {
  const tests::TempDir dir;
  const FastClock clock;
  const auto speed = MeasureRawSpeed(
      dir.path(),
      {.bytes_max = 64 << 20, .block_bytes = 65536, .depth = 4, .read = false},
      clock);
  ASSERT_TRUE(speed.ok()) << speed.status();
  // One round, and two looks at the clock after the first.
  EXPECT_EQ(speed->bytes, 4 * 65536);
  EXPECT_EQ(speed->write_bytes_per_s, 4 * 65536 / 2.0);
  EXPECT_EQ(speed->read_bytes_per_s, 0);
}

TEST(RawSpeedTest, SaysWhereItCouldNotWrite) {
  EXPECT_EQ(MeasureRawSpeed("/no/such/dir").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(RawSpeedTest, AFileIsReadWithoutWritingAnything) {
  const tests::TempDir dir;
  const std::string path = dir.path() + "/file";
  std::ofstream(path) << std::string((3 << 20) + 77, 'x');
  const auto speed = MeasureRawRead(path, {.depth = 2});
  if (absl::IsUnimplemented(speed.status())) {
    GTEST_SKIP() << speed.status();
  }
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_GT(*speed, 0);
  EXPECT_EQ(std::filesystem::file_size(path), (3 << 20) + 77);

  EXPECT_EQ(MeasureRawRead(path, {.block_bytes = 4 << 20}).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(MeasureRawRead(dir.path() + "/none").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(RawSpeedTest, AReadStopsWhenItsTimeIsOver) {
  const tests::TempDir dir;
  const std::string path = dir.path() + "/file";
  std::ofstream(path) << std::string(64 * 65536, 'x');
  const FastClock clock;
  const auto speed =
      MeasureRawRead(path, {.block_bytes = 65536, .depth = 4}, clock);
  if (absl::IsUnimplemented(speed.status())) {
    GTEST_SKIP() << speed.status();
  }
  ASSERT_TRUE(speed.ok()) << speed.status();
  // One round of 4 blocks, and two looks at the clock after the first.
  EXPECT_EQ(*speed, 4 * 65536 / 2.0);
}

}  // namespace
}  // namespace holdfast::ckpt

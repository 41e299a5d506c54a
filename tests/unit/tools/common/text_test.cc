// How numbers, tables and progress read.

#include "tools/common/text.h"

#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/common/progress.h"

namespace holdfast::tools {
namespace {

using ::testing::IsEmpty;

TEST(PrintableTest, ControlCharactersAndBytesThatAreNoTextAreSpelledOut) {
  EXPECT_EQ(Printable("plain, \xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\xb1"),
            "plain, \xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\xb1");
  EXPECT_EQ(Printable("\x1b[2Jgone\r\n\t\x7f"),
            "\\x1b[2Jgone\\x0d\\x0a\\x09\\x7f");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J");
  EXPECT_EQ(Printable("\xff\xc3(\xe2\x82"), "\\xff\\xc3(\\xe2\\x82");
  EXPECT_EQ(Printable("two\nlines\x1b", /*keep_lines=*/true),
            "two\nlines\\x1b");
}

TEST(TableTextTest, CellsCannotSteerTheTerminal) {
  EXPECT_EQ(TableText({{"a\x1b[1A", "b"}, {"c", "d"}}),
            "a\\x1b[1A  b\nc         d\n");
}

TEST(TextTest, BytesHaveThreeDigitsAndDecimalUnits) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(999), "999 B");
  EXPECT_EQ(BytesText(1000), "1.00 kB");
  EXPECT_EQ(BytesText(12'345), "12.3 kB");
  EXPECT_EQ(BytesText(999'499), "999 kB");
  EXPECT_EQ(BytesText(999'500), "1.00 MB");
  EXPECT_EQ(BytesText(1.37e9), "1.37 GB");
  EXPECT_EQ(BytesText(7e12), "7.00 TB");
  EXPECT_EQ(BytesText(9.996e6), "10.0 MB");
}

TEST(TextTest, CountsHaveCommas) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(1000), "1,000");
  EXPECT_EQ(CountText(501'072'478'208), "501,072,478,208");
}

TEST(TextTest, DurationsHaveTwoUnitsAtMost) {
  EXPECT_EQ(DurationText(0.0123), "12 ms");
  EXPECT_EQ(DurationText(0.9999), "1.0 s");
  EXPECT_EQ(DurationText(59.94), "59.9 s");
  EXPECT_EQ(DurationText(59.99), "1 min 0 s");
  EXPECT_EQ(DurationText(200), "3 min 20 s");
  EXPECT_EQ(DurationText(7500), "2 h 5 min");
  EXPECT_EQ(DurationText(277'200), "3 d 5 h");
  EXPECT_EQ(DurationText(-1), "?");
}

TEST(TextTest, TablesAlignColumns) {
  EXPECT_EQ(TableText({{"step", "bytes", "state"},
                       {"7", "12 B", "whole"},
                       {"120", "1.37 GB"}},
                      {Align::kRight, Align::kRight}),
            "step    bytes  state\n"
            "   7     12 B  whole\n"
            " 120  1.37 GB\n");
  EXPECT_EQ(TableText({}), "");
}

TEST(TextTest, WrappingBreaksAtSpaces) {
  EXPECT_EQ(WrapText("one two three four", 9, 2), "one two\n  three\n  four");
  EXPECT_EQ(WrapText("unbreakable", 4, 2), "unbreakable");
  EXPECT_EQ(WrapText("", 4, 2), "");
}

TEST(TextTest, FailuresHaveTheExitCodeOfTheirKind) {
  EXPECT_EQ(ReportFailure("t", absl::InvalidArgumentError("m")), 78);
  EXPECT_EQ(ReportFailure("t", absl::FailedPreconditionError("m")), 78);
  EXPECT_EQ(ReportFailure("t", absl::NotFoundError("m")), 66);
  EXPECT_EQ(ReportFailure("t", absl::DataLossError("m")), 65);
  EXPECT_EQ(ReportFailure("t", absl::UnavailableError("m")), 74);
  EXPECT_EQ(ReportFailure("t", absl::InternalError("m")), 70);
}

// A clock that stands until it is told to go on.
class StoppedClock final : public ckpt::Clock {
 public:
  absl::Duration Monotonic() const override { return now; }
  absl::Time WallTime() const override { return absl::UnixEpoch() + now; }
  void Sleep(absl::Duration duration) override { now += duration; }

  absl::Duration now = absl::Seconds(1000);
};

class ProgressTest : public testing::Test {
 protected:
  ProgressTest() : file_(std::tmpfile()) {}
  ~ProgressTest() override { std::fclose(file_); }

  std::string Said() {
    std::fflush(file_);
    std::string text(static_cast<size_t>(std::ftell(file_)), '\0');
    std::rewind(file_);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), file_), text.size());
    return text;
  }

  std::FILE* const file_;
  StoppedClock clock_;
};

TEST_F(ProgressTest, WritesPlainLinesEveryTenSeconds) {
  Progress progress({.doing = "reading", .terminal = false, .out = file_},
                    clock_);
  for (int second = 1; second <= 25; ++second) {
    clock_.now += absl::Seconds(1);
    progress.Update(second * 4'000'000, 200'000'000);
  }
  progress.Finish();
  EXPECT_EQ(Said(),
            "reading  20 %  40.0 MB of 200 MB  4.00 MB/s  40.0 s left\n"
            "reading  40 %  80.0 MB of 200 MB  4.00 MB/s  30.0 s left\n"
            "reading: 100 MB in 25.0 s, 4.00 MB/s\n");
}

TEST_F(ProgressTest, RewritesItsLineOnATerminal) {
  Progress progress(
      {.doing = "verifying", .unit = "tensors", .terminal = true, .out = file_},
      clock_);
  clock_.now += absl::Milliseconds(500);
  progress.Update(5, 10);
  clock_.now += absl::Milliseconds(50);
  progress.Update(6, 10);  // Too soon.
  clock_.now += absl::Milliseconds(450);
  progress.Update(10, 10);
  progress.Finish();
  const std::string first =
      "verifying  50 %  5 of 10 tensors  10 tensors/s  500 ms left";
  const std::string second = "verifying  100 %  10 of 10 tensors  10 tensors/s";
  const std::string blank(first.size(), ' ');
  EXPECT_EQ(Said(), "\r" + first + "\r" + second + blank.substr(second.size()) +
                        "\r" + blank.substr(0, second.size()) +
                        "\rverifying: 10 tensors in 1.0 s, 10 tensors/s\n");
}

TEST_F(ProgressTest, SetsItsRateAgainstTheBareDevices) {
  Progress progress(
      {.doing = "reading", .raw_per_s = 1.5e9, .terminal = false, .out = file_},
      clock_);
  clock_.now += absl::Seconds(2);
  progress.Update(1'500'000'000, 0);
  progress.Finish();
  EXPECT_EQ(Said(),
            "reading: 1.50 GB in 2.0 s, 750 MB/s (50 % of the raw 1.50 "
            "GB/s)\n");
}

TEST_F(ProgressTest, SaysNothingAboutShortWork) {
  Progress progress({.doing = "reading", .terminal = false, .out = file_},
                    clock_);
  clock_.now += absl::Milliseconds(900);
  progress.Update(5, 5);
  progress.Finish();
  EXPECT_THAT(Said(), IsEmpty());
}

TEST(TextTest, BytesAreReadAsPeopleWriteThem) {
  EXPECT_EQ(*ParseBytes("4096"), 4096u);
  EXPECT_EQ(*ParseBytes("12B"), 12u);
  EXPECT_EQ(*ParseBytes("5GB"), 5'000'000'000u);
  EXPECT_EQ(*ParseBytes("1.5M"), 1'500'000u);
  EXPECT_EQ(*ParseBytes("64KiB"), 65'536u);
  EXPECT_EQ(*ParseBytes("2Gi"), uint64_t{2} << 30);
  EXPECT_EQ(*ParseBytes("150kB"), 150'000u);
  for (const char* wrong : {"", "B", "-1", "1X", "1KK", "1GBB", "1e3", "1 G",
                            "..", "9999999T", "nan", "0x10"}) {
    EXPECT_FALSE(ParseBytes(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace holdfast::tools

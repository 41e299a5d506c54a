// What a comparison of two runs counts as equal.

#include "trainer/compare_runs.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

MetricsLine Line(int64_t step, uint32_t loss_bits, uint32_t incarnation = 1,
                 const char* layout = "tp1-pp1-dp1") {
  MetricsLine line;
  line.step = step;
  line.loss = 2.0;
  line.loss_bits = loss_bits;
  line.incarnation = incarnation;
  line.layout = layout;
  return line;
}

TEST(CompareRunsTest, SegmentsFollowIncarnationAndLayout) {
  const std::vector<MetricsLine> reference = {Line(1, 7), Line(2, 8),
                                              Line(3, 9)};
  const std::vector<MetricsLine> other = {
      Line(1, 7), Line(2, 8, 2, "tp2-pp1-dp1"), Line(3, 9, 2, "tp2-pp1-dp1")};
  const auto segments = CompareSegments(reference, other);
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0].steps, 1);
  EXPECT_EQ(segments[1].first_step, 2);
  EXPECT_EQ(segments[1].last_step, 3);
  EXPECT_TRUE(segments[0].bits_equal());
  EXPECT_TRUE(segments[1].bits_equal());
}

TEST(CompareRunsTest, OneDifferentBitIsSeen) {
  const std::vector<MetricsLine> reference = {Line(1, 7), Line(2, 8)};
  const std::vector<MetricsLine> other = {Line(1, 7), Line(2, 9)};
  const auto segments = CompareSegments(reference, other);
  EXPECT_EQ(segments[0].loss_equal, 1);
  EXPECT_FALSE(segments[0].bits_equal());
}

TEST(CompareRunsTest, AStepWithoutAReferenceIsNotEqual) {
  const std::vector<MetricsLine> reference = {Line(1, 7)};
  const std::vector<MetricsLine> other = {Line(1, 7), Line(2, 8)};
  const auto segments = CompareSegments(reference, other);
  EXPECT_EQ(segments[0].missing, 1);
  EXPECT_FALSE(segments[0].bits_equal());
  EXPECT_FALSE(segments[0].all_samples_equal());
}

TEST(CompareRunsTest, GapsAreRelativeAndALossThatIsNoNumberIsFarthest) {
  const std::vector<MetricsLine> reference = {Line(1, 7), Line(2, 8),
                                              Line(3, 9)};
  std::vector<MetricsLine> other = reference;
  other[0].loss = 2.02;
  other[1].loss = 1.8;
  auto segments = CompareSegments(reference, other);
  EXPECT_NEAR(segments[0].loss_gap_first, 0.01, 1e-9);
  EXPECT_NEAR(segments[0].loss_gap_max, 0.1, 1e-9);
  other[0].loss = std::nan("");
  segments = CompareSegments(reference, other);
  EXPECT_GT(segments[0].loss_gap_first, 1e300);
  EXPECT_GT(segments[0].loss_gap_max, 1e300);
}

TEST(CompareRunsTest, OtherSamplesAreSeenAlthoughLossesAgree) {
  const std::vector<MetricsLine> reference = {Line(1, 7)};
  std::vector<MetricsLine> other = {Line(1, 7)};
  other[0].sample_digest = 1;
  const auto segments = CompareSegments(reference, other);
  EXPECT_TRUE(segments[0].bits_equal());
  EXPECT_FALSE(segments[0].all_samples_equal());
}

}  // namespace
}  // namespace holdfast::trainer

// Which links are called slow, and by what measure.

#include "trainer/links/link_report.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

// Four ranks a host.
std::string HostOf(int rank) { return "n" + std::to_string(rank / 4); }

PairRecord Pair(int a, int b, double gb_per_s, double us = 2) {
  return {LinkAxis::kDp, a, b, us, gb_per_s * 1e9};
}

LinkReport Judge(const std::vector<PairRecord>& pairs,
                 const LinkExpectations& expected = {},
                 const std::vector<GroupRecord>& groups = {}) {
  return JudgeLinks(pairs, groups, expected, HostOf,
                    [](const GroupRecord& group) {
                      std::vector<int> ranks;
                      for (int i = 0; i < group.members; ++i) {
                        ranks.push_back(group.first + i);
                      }
                      return ranks;
                    });
}

TEST(LinkReportTest, KindsAreByAxisAndPlace) {
  const LinkReport report = Judge(
      {Pair(0, 1, 100), Pair(1, 2, 90), Pair(2, 3, 110), Pair(0, 4, 20)}, {},
      {{LinkAxis::kDp, 0, 4, 5, 50e9}, {LinkAxis::kDp, 2, 4, 9, 10e9}});
  ASSERT_THAT(report.kinds, SizeIs(2));
  const LinkKind& inside = report.kinds[0];
  EXPECT_FALSE(inside.across);
  EXPECT_EQ(inside.pairs, 3);
  EXPECT_DOUBLE_EQ(inside.pair_bytes_per_s_median, 100e9);
  EXPECT_DOUBLE_EQ(inside.pair_bytes_per_s_min, 90e9);
  EXPECT_EQ(inside.groups, 1);
  EXPECT_DOUBLE_EQ(inside.group_bus_bytes_per_s_median, 50e9);
  const LinkKind& across = report.kinds[1];
  EXPECT_TRUE(across.across);
  EXPECT_EQ(across.pairs, 1);
  EXPECT_DOUBLE_EQ(across.group_latency_us_median, 9);
  EXPECT_THAT(report.slow, SizeIs(0));
  EXPECT_TRUE(report.meets_expectations());
}

TEST(LinkReportTest, WithoutAnExpectationAPairIsComparedWithItsKind) {
  // 20 GB/s is fine across hosts and slow inside one.
  const LinkReport report =
      Judge({Pair(0, 1, 100), Pair(0, 2, 100), Pair(1, 3, 20), Pair(0, 4, 20),
             Pair(1, 5, 20, 7), Pair(2, 6, 21)});
  ASSERT_THAT(report.slow, SizeIs(2));
  EXPECT_EQ(report.slow[0].pair.a, 1);
  EXPECT_EQ(report.slow[0].pair.b, 3);
  EXPECT_THAT(report.slow[0].why, HasSubstr("20 GB/s, the median is 100 GB/s"));
  EXPECT_EQ(report.slow[1].pair.b, 5);
  EXPECT_THAT(report.slow[1].why, HasSubstr("7 us, the median is 2 us"));
  EXPECT_TRUE(report.meets_expectations()) << "nothing was asked";
}

TEST(LinkReportTest, AnExpectationThatIsMissedFailsWorstFirst) {
  LinkExpectations expected;
  expected.inside.bytes_per_s = 50e9;
  expected.across.latency_us = 5;
  const LinkReport report =
      Judge({Pair(0, 1, 40), Pair(1, 2, 60, 100), Pair(2, 3, 60),
             Pair(0, 4, 1, 4), Pair(1, 5, 1, 20)},
            expected);
  ASSERT_THAT(report.slow, SizeIs(3));
  EXPECT_THAT(report.slow[0].why, HasSubstr("100 us, the median is"));
  EXPECT_FALSE(report.slow[0].misses_expectation);
  EXPECT_THAT(report.slow[1].why, HasSubstr("20 us, expected 5 us"));
  EXPECT_TRUE(report.slow[1].misses_expectation);
  EXPECT_THAT(report.slow[2].why, HasSubstr("40 GB/s, expected 50 GB/s"));
  EXPECT_FALSE(report.meets_expectations());
}

TEST(LinkReportTest, TheRankInMostSlowPairsIsNamedUnlessItSharesThePlace) {
  EXPECT_EQ(Judge({Pair(0, 1, 100), Pair(0, 3, 10), Pair(1, 2, 100),
                   Pair(1, 3, 10), Pair(0, 2, 100), Pair(2, 3, 10)})
                .suspect_rank,
            3);
  LinkExpectations expected;
  expected.inside.bytes_per_s = 200e9;
  // A ring where all are slow points at nobody.
  const LinkReport all = Judge(
      {Pair(0, 1, 100), Pair(1, 2, 100), Pair(2, 3, 100), Pair(0, 3, 100)},
      expected);
  EXPECT_THAT(all.slow, SizeIs(4));
  EXPECT_EQ(all.suspect_rank, kNoSuspect);
  EXPECT_EQ(Judge({Pair(0, 1, 10)}, expected).suspect_rank, kNoSuspect);
}

}  // namespace
}  // namespace holdfast::trainer

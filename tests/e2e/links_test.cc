// `holdfast links` over real ranks: what a user reads before a run.

#include <filesystem>

#include "gmock/gmock.h"
#include "tests/e2e/job_test.h"

namespace holdfast::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class LinksTest : public JobTest {
 protected:
  Ended Links(int ranks, std::vector<std::string> options) {
    std::vector<std::string> words = {"launch", "-n", std::to_string(ranks),
                                      "--", "links"};
    words.insert(words.end(), {"--message", "64KiB", "--sum", "64KiB"});
    words.insert(words.end(), options.begin(), options.end());
    return runs_.Program("holdfast", words);
  }
};

TEST_F(LinksTest, EveryAxisOfTheLayoutIsMeasured) {
  const Ended ended = Links(6, {"--tp", "2", "--json"});
  ASSERT_EQ(ended.code, 0) << ended;
  const auto json = nlohmann::json::parse(ended.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << ended;
  EXPECT_EQ(json["layout"], "tp2-pp1-dp3");
  EXPECT_EQ(json["hosts"], 1);
  EXPECT_THAT(json["groups"], SizeIs(3 + 2));
  EXPECT_THAT(json["pairs"], SizeIs(3 * 1 + 2 * 3));
  for (const auto& pair : json["pairs"]) {
    EXPECT_GT(pair["bytes_per_s"], 0) << pair;
    EXPECT_GT(pair["us"], 0) << pair;
  }
}

TEST_F(LinksTest, AMissedExpectationNamesThePairAndExitsWith1) {
  const Ended ended = Links(2, {"--expect-inside", "1e6"});
  EXPECT_EQ(ended.code, 1) << ended;
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("slow: dp, rank 0 on "), HasSubstr("rank 1 on "),
                    HasSubstr("expected 1e+06 GB/s"),
                    HasSubstr("result: not as expected")));
}

TEST_F(LinksTest, AnExpectationThatIsMetSaysSo) {
  const Ended ended = Links(2, {"--expect-inside", "1e-6"});
  EXPECT_EQ(ended.code, 0) << ended;
  EXPECT_THAT(ended.out, HasSubstr("result: as expected"));
}

TEST_F(LinksTest, RanksThatDoNotFitTheLayoutAreRefusedOnce) {
  const Ended ended = Links(3, {"--tp", "2"});
  EXPECT_EQ(ended.code, 78) << ended;
  const size_t first = ended.err.find("which 3 ranks are no multiple of");
  EXPECT_NE(first, std::string::npos) << ended;
  EXPECT_EQ(ended.err.find("which 3 ranks", first + 1), std::string::npos)
      << ended;
}

TEST_F(LinksTest, WithoutAGpuLinksBetweenGpusAreRefusedInALine) {
  if (std::filesystem::exists("/dev/nvidia0")) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  const Ended ended = Links(2, {"--device", "cuda"});
  EXPECT_EQ(ended.code, 78) << ended;
  EXPECT_THAT(ended.err, HasSubstr("device = cuda needs"));
}

TEST_F(LinksTest, OneRankIsToldHowToStartSeveral) {
  const Ended ended = runs_.Program("holdfast", {"links"});
  EXPECT_EQ(ended.code, 78) << ended;
  EXPECT_THAT(ended.err, HasSubstr("holdfast launch -n N -- links"));
}

}  // namespace
}  // namespace holdfast::tests

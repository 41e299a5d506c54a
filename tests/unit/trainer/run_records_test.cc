// A run's records survive what crashes do to them, and repeats are resolved.

#include "trainer/run_records.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

class RunRecordsTest : public testing::Test {
 protected:
  void SetUp() override {
    run_ = testing::TempDir() + "run_records_test_" +
           testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(run_);
  }
  void TearDown() override { std::filesystem::remove_all(run_); }

  MetricsLine Line(int64_t step, uint32_t incarnation, double loss) {
    MetricsLine line;
    line.step = step;
    line.incarnation = incarnation;
    line.loss = loss;
    line.loss_bits = 0x40400000;
    line.sample_digest = 0xfedcba9876543210;
    line.layout = "tp2-pp1-dp2";
    line.fwd_ms = {1.5, 2.5};
    return line;
  }

  std::string run_;
};

TEST_F(RunRecordsTest, TheHighestIncarnationOfARepeatedStepWins) {
  auto first = RunRecords::Open(run_, 1);
  ASSERT_TRUE(first.ok()) << first.status();
  for (int step = 1; step <= 3; ++step) {
    ASSERT_TRUE((*first)->WriteMetrics(Line(step, 1, step)).ok());
  }
  auto second = RunRecords::Open(run_, 2);
  ASSERT_TRUE(second.ok()) << second.status();
  for (int step = 3; step <= 4; ++step) {
    ASSERT_TRUE((*second)->WriteMetrics(Line(step, 2, 10 + step)).ok());
  }

  const auto steps = ReadMetrics(run_);
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 4u);
  EXPECT_EQ((*steps)[1].loss, 2);
  EXPECT_EQ((*steps)[2].loss, 13);
  EXPECT_EQ((*steps)[2].incarnation, 2u);
  EXPECT_EQ((*steps)[3].sample_digest, 0xfedcba9876543210);
  EXPECT_EQ((*steps)[3].fwd_ms, (std::vector<double>{1.5, 2.5}));
  EXPECT_EQ(ReadAllMetrics(run_)->size(), 5u);
}

TEST_F(RunRecordsTest, ATornLastLineIsSkippedAndCounted) {
  auto records = RunRecords::Open(run_, 1);
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_TRUE((*records)->WriteMetrics(Line(1, 1, 1)).ok());
  std::ofstream(run_ + "/metrics.jsonl", std::ios::app)
      << "{\"time\": 17, \"st";
  int skipped = 0;
  const auto steps = ReadMetrics(run_, &skipped);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->size(), 1u);
  EXPECT_EQ(skipped, 1);
}

TEST_F(RunRecordsTest, TextThatIsNotUtf8IsWrittenAllTheSame) {
  auto records = RunRecords::Open(run_, 1);
  ASSERT_TRUE(records.ok()) << records.status();
  const std::string name = "caf\xe9";
  EXPECT_TRUE((*records)->WriteJournal("stop", {{"message", name}}).ok());
  EXPECT_TRUE(WriteStatusFile(run_, "failed", 1, 1, 74, name).ok());
  EXPECT_EQ(ReadJournal(run_)->size(), 1u);
}

TEST_F(RunRecordsTest, ALossThatIsNotANumberComesBackAsOne) {
  auto records = RunRecords::Open(run_, 1);
  ASSERT_TRUE(records.ok()) << records.status();
  MetricsLine line = Line(1, 1, std::nan(""));
  line.skipped = true;
  ASSERT_TRUE((*records)->WriteMetrics(line).ok());
  const auto steps = ReadMetrics(run_);
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 1u);
  EXPECT_TRUE(std::isnan((*steps)[0].loss));
  EXPECT_TRUE((*steps)[0].skipped);
}

TEST_F(RunRecordsTest, TheJournalKeepsTypes) {
  auto records = RunRecords::Open(run_, 3);
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_TRUE((*records)
                  ->WriteJournal("save", {{"step", int64_t{20}},
                                          {"outcome", "committed"},
                                          {"seconds", 0.5},
                                          {"urgent", true}})
                  .ok());
  const auto events = ReadJournal(run_);
  ASSERT_TRUE(events.ok()) << events.status();
  ASSERT_EQ(events->size(), 1u);
  EXPECT_EQ((*events)[0].event, "save");
  EXPECT_EQ((*events)[0].facts.at("step").integer, 20);
  EXPECT_EQ((*events)[0].facts.at("outcome").text, "committed");
  EXPECT_EQ((*events)[0].facts.at("seconds").number, 0.5);
  EXPECT_EQ((*events)[0].facts.at("incarnation").integer, 3);
}

TEST_F(RunRecordsTest, AnOwnerThatLostTheRunDoesNotReplaceItsStatus) {
  const auto status = [&] {
    std::ifstream file(run_ + "/status.json");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  std::filesystem::create_directories(run_);
  ASSERT_TRUE(WriteStatusFile(run_, "running", 3, 1, std::nullopt, "").ok());
  ASSERT_TRUE(WriteStatusFile(run_, "finished", 9, 2, 0, "").ok());
  const std::string finished = status();
  EXPECT_NE(finished.find("finished"), std::string::npos);
  EXPECT_TRUE(WriteStatusFile(run_, "failed", 5, 1, 74, "late").ok());
  EXPECT_EQ(status(), finished);
  EXPECT_TRUE(WriteStatusFile(run_, "running", 9, 3, std::nullopt, "").ok());
  EXPECT_NE(status(), finished);

  // What cannot be read stops nobody.
  std::ofstream(run_ + "/status.json") << "{\"incarnation\": 9";
  EXPECT_TRUE(WriteStatusFile(run_, "running", 10, 3, std::nullopt, "").ok());
  EXPECT_NE(status().find("running"), std::string::npos);
}

TEST_F(RunRecordsTest, ATornLineIsNotJoinedByTheNextOne) {
  {
    auto records = RunRecords::Open(run_, 1);
    ASSERT_TRUE(records.ok()) << records.status();
    ASSERT_TRUE((*records)->WriteMetrics(Line(1, 1, 2.0)).ok());
    ASSERT_TRUE((*records)->WriteMetrics(Line(2, 1, 2.0)).ok());
  }
  const std::string path = run_ + "/metrics.jsonl";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 20);
  auto records = RunRecords::Open(run_, 2);
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_TRUE((*records)->WriteMetrics(Line(2, 2, 3.0)).ok());
  int skipped = 0;
  const auto steps = ReadMetrics(run_, &skipped);
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 2u);
  EXPECT_EQ((*steps)[1].incarnation, 2u);
  EXPECT_EQ(skipped, 1);
}

TEST_F(RunRecordsTest, AStatusKeepsTheStepThatItsWriterDoesNotKnow) {
  std::filesystem::create_directories(run_);
  ASSERT_TRUE(WriteStatusFile(run_, "running", 40, 3, {}, "").ok());
  ASSERT_TRUE(WriteStatusFile(run_, "failed", kUnknownStep, kUnknownIncarnation,
                              76, "no progress")
                  .ok());
  std::ifstream file(run_ + "/status.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(text.find("\"step\": 40"), std::string::npos) << text;
  EXPECT_NE(text.find("\"incarnation\": 3"), std::string::npos) << text;
  EXPECT_NE(text.find("\"exit_code\": 76"), std::string::npos) << text;
}

TEST_F(RunRecordsTest, AnUnwritableDirectoryIsNamed) {
  std::ofstream(run_) << "a file where the run should be";
  const auto records = RunRecords::Open(run_, 1);
  ASSERT_FALSE(records.ok());
  EXPECT_NE(records.status().message().find(run_), std::string::npos);
}

}  // namespace
}  // namespace holdfast::trainer

// Every error at every kind of operation of a save, on one rank or on all, once
// or from then on: the save is lost, everybody hears why, nothing else is lost,
// and the next save is as good as ever. A table; each row is a job of two ranks
// over a real directory.

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/checkpointer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/party.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using tests::Finish;
using tests::OnRanks;
using tests::Party;

constexpr int kRanks = 2;

struct Error {
  const char* name;
  absl::StatusCode code;
};
constexpr Error kErrors[] = {
    {"ENOSPC", absl::StatusCode::kResourceExhausted},
    {"EDQUOT", absl::StatusCode::kResourceExhausted},
    {"EIO", absl::StatusCode::kUnavailable},
    {"EROFS", absl::StatusCode::kPermissionDenied},
};

struct Place {
  const char* op;
  bool rank_zero_only;
};
constexpr Place kPlaces[] = {{"mkdir", true},    {"create", false},
                             {"write", false},   {"sync", false},
                             {"syncdir", false}, {"put", true}};

class StorageErrors : public testing::Test {
 protected:
  CheckpointerOptions Options(const std::string& fault) const {
    CheckpointerOptions options;
    options.run_dir = dir_.path();
    options.fault_spec = fault;
    options.fence_ms = 20'000;
    return options;
  }
  void FreshRun() {
    std::filesystem::remove_all(dir_.path());
    std::filesystem::create_directory(dir_.path());
  }
  // The steps from `first` to `last`, one save each; what each rank was told.
  std::vector<std::vector<SaveReport>> Save(const std::string& fault,
                                            int64_t first, int64_t last,
                                            SaveCounters* counters) {
    std::vector<std::vector<SaveReport>> reports(kRanks);
    OnRanks(kRanks, Options(fault), [&](Party& party) {
      Checkpointer& checkpointer = party.checkpointer();
      ASSERT_TRUE(checkpointer.ClaimAndLoad({}).ok());
      for (int64_t step = first; step <= last; ++step) {
        party.Fill(step);
        ASSERT_TRUE(checkpointer.BeginSave({step, {}}).ok());
        party.StepTo(step + 1);
        reports[Index(party.rank())].push_back(Finish(checkpointer));
        EXPECT_EQ(party.Compare(step + 1), "") << "training was disturbed";
      }
      if (party.rank() == Rank{0}) *counters = checkpointer.counters();
      checkpointer.Close().IgnoreError();  // retention's word, if any
    });
    return reports;
  }
  void ExpectLoads(int64_t step) {
    OnRanks(kRanks, Options(""), [&](Party& party) {
      const auto loaded = party.checkpointer().ClaimAndLoad({});
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      EXPECT_EQ(loaded->step, step);
      EXPECT_EQ(party.Compare(step), "");
      EXPECT_TRUE(party.checkpointer().Close().ok());
    });
  }
  // Lost, for every rank, with the reason; by rank `rank`'s fault (-1: all).
  void ExpectLost(const std::vector<std::vector<SaveReport>>& reports,
                  size_t save, int rank, const Error& error) {
    for (int r = 0; r < kRanks; ++r) {
      const SaveReport& report = reports[r][save];
      SCOPED_TRACE(absl::StrFormat("rank %d: %s", r,
                                   std::string(report.status.message())));
      EXPECT_TRUE(report.outcome == SaveReport::Outcome::kAborted ||
                  report.outcome == SaveReport::Outcome::kFailed);
      EXPECT_THAT(
          std::string(report.status.message()),
          testing::AllOf(HasSubstr(error.name), HasSubstr("training goes on")));
      if (r == rank && report.outcome == SaveReport::Outcome::kFailed) {
        // Where rank 0 fails for all, its word to them is its own as well.
        EXPECT_TRUE(report.status.code() == error.code ||
                    (rank == 0 && absl::IsAborted(report.status)));
      }
    }
  }

  tests::TempDir dir_{tests::MemoryFolder()};
};

class StorageErrorsTest : public StorageErrors,
                          public testing::WithParamInterface<Place> {};

INSTANTIATE_TEST_SUITE_P(Operations, StorageErrorsTest,
                         testing::ValuesIn(kPlaces), [](const auto& info) {
                           return std::string(info.param.op);
                         });

TEST_P(StorageErrorsTest, OnceCostsThatSaveAndNoOther) {
  for (const Error& error : kErrors) {
    for (const int rank : {0, 1, -1}) {
      if (GetParam().rank_zero_only && rank != 0) continue;
      const std::string fault =
          absl::StrFormat("%smatch=step-000000002,op=%s,do=fail,error=%s",
                          rank < 0 ? "" : absl::StrFormat("rank=%d,", rank),
                          GetParam().op, error.name);
      SCOPED_TRACE(fault);
      FreshRun();
      SaveCounters counters;
      const auto reports = Save(fault, 1, 3, &counters);
      ExpectLost(reports, 1, rank, error);
      for (const auto& of_rank : reports) {
        EXPECT_TRUE(of_rank[0].status.ok()) << of_rank[0].status;
        EXPECT_TRUE(of_rank[2].status.ok()) << of_rank[2].status;
      }
      EXPECT_EQ(counters.failed, 1);
      EXPECT_EQ(counters.failed_in_a_row, 0);
      EXPECT_EQ(counters.skipped, 0);
      ExpectLoads(3);
    }
  }
}

TEST_P(StorageErrorsTest, FromThenOnEverySaveIsCountedAndTheOldOneStays) {
  for (const Error& error : kErrors) {
    for (const int rank : {0, 1, -1}) {
      if (GetParam().rank_zero_only && rank != 0) continue;
      FreshRun();
      SaveCounters counters;
      Save("", 1, 1, &counters);
      const std::string fault =
          absl::StrFormat("%smatch=.i0002.a,op=%s,do=fail,error=%s,lasting=yes",
                          rank < 0 ? "" : absl::StrFormat("rank=%d,", rank),
                          GetParam().op, error.name);
      SCOPED_TRACE(fault);
      const auto reports = Save(fault, 2, 4, &counters);
      for (size_t save = 0; save < 3; ++save) {
        ExpectLost(reports, save, rank, error);
      }
      EXPECT_EQ(counters.failed_in_a_row, 3);
      EXPECT_EQ(counters.skipped, 0);
      EXPECT_EQ(counters.last_durable_step, 1);
      ExpectLoads(1);
    }
  }
}

class LoadErrorsTest : public StorageErrors {
 protected:
  void SetUp() override {
    SaveCounters counters;
    Save("", 1, 2, &counters);
  }
  // What each rank's load under `fault` came to.
  std::vector<absl::StatusOr<LoadReport>> Load(const std::string& fault) {
    std::vector<absl::StatusOr<LoadReport>> loads(kRanks);
    OnRanks(kRanks, Options(fault), [&](Party& party) {
      const int rank = Index(party.rank());
      loads[rank] = party.checkpointer().ClaimAndLoad({});
      if (loads[rank].ok()) {
        EXPECT_EQ(party.Compare(loads[rank]->step), "");
      }
      party.checkpointer().Close().IgnoreError();
    });
    return loads;
  }
};

TEST_F(LoadErrorsTest, OnceIsTriedAgainAndNothingIsLost) {
  for (const char* fault :
       {"op=open,match=shard,do=fail", "op=read,match=shard,do=fail",
        "op=read,n=3,match=shard,do=fail", "op=read,n=4,match=shard,do=fail",
        "op=get,match=MANIFEST,do=fail", "op=get,match=run.id,do=fail",
        "op=list,match=checkpoints,do=fail", "op=list,match=owners,do=fail"}) {
    for (const char* rank : {"", "rank=1,", "rank=0,"}) {
      SCOPED_TRACE(std::string(rank) + fault);
      for (const auto& load : Load(std::string(rank) + fault)) {
        ASSERT_TRUE(load.ok()) << load.status();
        EXPECT_EQ(load->step, 2);
        EXPECT_TRUE(load->stepped_over.empty());
      }
    }
  }
}

// The sector of the header, of a unit, and of the footer.
TEST_F(LoadErrorsTest, ABadSectorForAllRanksCostsThatCheckpoint) {
  for (const int64_t at : {10, 4100}) {
    SCOPED_TRACE(at);
    FreshRun();
    SetUp();
    const auto loads = Load(absl::StrFormat(
        "op=read,match=step-000000002,at=%d,do=fail,lasting=yes", at));
    for (const auto& load : loads) {
      ASSERT_TRUE(load.ok()) << load.status();
      EXPECT_EQ(load->step, 1);
      ASSERT_EQ(load->stepped_over.size(), 1u);
      EXPECT_THAT(
          load->stepped_over[0].reason,
          testing::AllOf(HasSubstr("damaged: shard-0000"),
                         HasSubstr("cannot be read"), HasSubstr("(EIO)")));
      if (at == 4100) {
        EXPECT_THAT(
            load->stepped_over[0].reason,
            // Of the rank that was heard first.
            testing::AnyOf(HasSubstr("shard-00000.hf, offset 4096 (exp_avg of "
                                     "'a', rows 0-"),
                           HasSubstr("shard-00001.hf, offset 4096 (exp_avg of "
                                     "'a', rows 20-")));
      }
    }
  }
}

TEST_F(LoadErrorsTest, ABadSectorForOneRankIsThatRanksFault) {
  const auto loads =
      Load("rank=1,op=read,match=step-000000002,at=4100,do=fail,lasting=yes");
  for (const auto& load : loads) {
    EXPECT_TRUE(absl::IsUnavailable(load.status())) << load.status();
    EXPECT_THAT(std::string(load.status().message()),
                testing::AllOf(HasSubstr("rank 1 ("), HasSubstr("(EIO)"),
                               HasSubstr("reads the same bytes whole")));
  }
  ExpectLoads(2);
}

TEST_F(LoadErrorsTest, AStorageThatReadsNothingCostsNoCheckpoint) {
  for (const char* fault :
       {"op=read,do=fail,lasting=yes", "op=list,do=fail,lasting=yes"}) {
    SCOPED_TRACE(fault);
    for (const auto& load : Load(fault)) {
      EXPECT_TRUE(absl::IsUnavailable(load.status())) << load.status();
      EXPECT_THAT(std::string(load.status().message()), HasSubstr("(EIO)"));
    }
    ExpectLoads(2);
  }
}

}  // namespace
}  // namespace holdfast::ckpt

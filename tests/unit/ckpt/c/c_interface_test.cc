// The C functions as a caller of another language uses them: jobs whose ranks
// are threads, all ways for memory to be held, and every kind of wrong
// argument.

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/c/holdfast_ckpt.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

extern "C" const char* holdfast_c99_round_trip(const char* run_dir);

namespace holdfast::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StrEq;
using tests::TempDir;

#define EXPECT_OK(call) EXPECT_EQ((call), HF_CKPT_OK) << hf_ckpt_last_error()
#define ASSERT_OK(call) ASSERT_EQ((call), HF_CKPT_OK) << hf_ckpt_last_error()

constexpr int64_t kRows = 30;
constexpr int64_t kColumns = 700;

float ValueAt(int64_t row, int64_t column, int64_t step) {
  return static_cast<float>(row * kColumns + column) + 0.25f * step;
}

enum class Cut { kRows, kColumns, kRuns };

// One rank of a job with a cut matrix, a vector that all ranks hold, a scalar,
// and an array of bytes on the last rank alone.
class JobRank {
 public:
  JobRank(const std::string& run_dir, hf_ckpt_group* group, Cut cut,
          bool in_place, const hf_ckpt_options* options = nullptr)
      : rank_(hf_ckpt_group_rank(group)),
        ranks_(hf_ckpt_group_size(group)),
        cut_(cut) {
    EXPECT_OK(hf_ckpt_new(run_dir.c_str(), group, options, &ckpt_));
    DeclareMatrix(in_place);
    const int64_t length = 11;
    uint32_t item = 0;
    const int64_t zero = 0;
    EXPECT_OK(hf_ckpt_add_item(ckpt_, "copied", "weight", HF_CKPT_I32, 1,
                               &length, &item));
    EXPECT_OK(hf_ckpt_add_buffer(ckpt_, item, &zero, &length, copied_,
                                 sizeof(copied_), HF_CKPT_STAGED, nullptr));
    EXPECT_OK(hf_ckpt_add_item(ckpt_, "scalar", "count", HF_CKPT_I64, 0,
                               nullptr, &item));
    EXPECT_OK(hf_ckpt_add_buffer(ckpt_, item, nullptr, nullptr, &scalar_,
                                 sizeof(scalar_), HF_CKPT_STAGED, nullptr));
    if (rank_ != ranks_ - 1) return;
    const int64_t bytes = sizeof(tail_);
    EXPECT_OK(
        hf_ckpt_add_item(ckpt_, "tail", "bytes", HF_CKPT_U8, 1, &bytes, &item));
    EXPECT_OK(hf_ckpt_add_buffer(ckpt_, item, &zero, &bytes, tail_ + 1, bytes,
                                 HF_CKPT_STAGED, nullptr));
  }
  ~JobRank() {
    hf_ckpt_free(ckpt_);
    hf_ckpt_dealloc(memory_);
  }

  hf_ckpt* ckpt() { return ckpt_; }
  uint32_t buffer() const { return buffer_; }
  int64_t matrix_bytes() const { return count_ * 4; }

  void Fill(int64_t step) {
    for (int64_t i = 0; i < count_; ++i) matrix_[i] = MatrixValue(i, step);
    for (int i = 0; i < 11; ++i) copied_[i] = i + 100 * step;
    scalar_ = step;
    std::memset(tail_, static_cast<int>(step), sizeof(tail_));
  }
  // What is not the value of that step; "" for nothing.
  std::string Differs(int64_t step) const {
    for (int64_t i = 0; i < count_; ++i) {
      if (matrix_[i] != MatrixValue(i, step)) {
        return "matrix element " + std::to_string(i);
      }
    }
    for (int i = 0; i < 11; ++i) {
      if (copied_[i] != i + 100 * step) return "copied";
    }
    if (scalar_ != step) return "scalar";
    if (rank_ == ranks_ - 1) {
      for (size_t i = 1; i <= sizeof(tail_) - 1; ++i) {
        if (tail_[i] != static_cast<uint8_t>(step)) return "tail";
      }
    }
    return "";
  }

 private:
  void DeclareMatrix(bool in_place) {
    const int64_t shape[2] = {kRows, kColumns};
    uint32_t item = 0;
    EXPECT_OK(hf_ckpt_add_item(ckpt_, "matrix", "weight", HF_CKPT_F32, 2, shape,
                               &item));
    int64_t first[2] = {0, 0};
    int64_t count[2] = {kRows, kColumns};
    if (cut_ == Cut::kRuns) {
      first_ = shape[0] * shape[1] * rank_ / ranks_;
      count_ = shape[0] * shape[1] * (rank_ + 1) / ranks_ - first_;
    } else {
      const int d = cut_ == Cut::kRows ? 0 : 1;
      first[d] = shape[d] * rank_ / ranks_;
      count[d] = shape[d] * (rank_ + 1) / ranks_ - first[d];
      count_ = count[0] * count[1];
    }
    box_[0] = first[0];
    box_[1] = first[1];
    width_ = count[1];
    const uint64_t room = (count_ * 4 + 4095) / 4096 * 4096;
    EXPECT_OK(hf_ckpt_alloc(room + 4096, &memory_));
    // Staged memory may lie anywhere.
    matrix_ = static_cast<float*>(memory_) + (in_place ? 0 : 3);
    const int32_t placement = in_place ? HF_CKPT_IN_PLACE : HF_CKPT_STAGED;
    const uint64_t memory_bytes = in_place ? room : count_ * 4;
    if (cut_ == Cut::kRuns) {
      EXPECT_OK(hf_ckpt_add_run(ckpt_, item, first, count, first_, count_,
                                matrix_, memory_bytes, placement, &buffer_));
    } else {
      EXPECT_OK(hf_ckpt_add_buffer(ckpt_, item, first, count, matrix_,
                                   memory_bytes, placement, &buffer_));
    }
  }

  float MatrixValue(int64_t i, int64_t step) const {
    const int64_t at = first_ + i;
    return ValueAt(box_[0] + at / width_, box_[1] + at % width_, step);
  }

  const int rank_;
  const int ranks_;
  const Cut cut_;
  hf_ckpt* ckpt_ = nullptr;
  void* memory_ = nullptr;
  float* matrix_ = nullptr;
  int64_t first_ = 0;  // of a run
  int64_t count_ = 0;
  int64_t box_[2] = {0, 0};
  int64_t width_ = kColumns;
  uint32_t buffer_ = 0;
  int32_t copied_[11] = {};
  int64_t scalar_ = 0;
  uint8_t tail_[41] = {};
};

void OnRanks(std::vector<hf_ckpt_group*> groups,
             const std::function<void(hf_ckpt_group*)>& body) {
  std::vector<std::thread> threads;
  for (hf_ckpt_group* group : groups) {
    threads.emplace_back([&body, group] { body(group); });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<hf_ckpt_group*> ThreadGroups(int ranks) {
  std::vector<hf_ckpt_group*> groups(ranks);
  EXPECT_OK(hf_ckpt_group_threads(ranks, groups.data()));
  return groups;
}

void Start(JobRank& rank, hf_ckpt_load_report* report) {
  ASSERT_OK(hf_ckpt_open(rank.ckpt()));
  ASSERT_OK(hf_ckpt_load(rank.ckpt(), nullptr, report));
}

void SaveAndWait(JobRank& rank, int64_t step) {
  const hf_ckpt_attribute attributes[] = {{"note", "hello"}, {".fact", ""}};
  ASSERT_OK(hf_ckpt_begin_save(rank.ckpt(), step, attributes, 2));
  hf_ckpt_save_report report = HF_CKPT_SAVE_REPORT_INIT;
  int32_t ready = 0;
  ASSERT_OK(hf_ckpt_wait_save(rank.ckpt(), 60'000, &report, &ready));
  ASSERT_EQ(ready, 1);
  EXPECT_EQ(report.outcome, HF_CKPT_COMMITTED) << report.message;
  EXPECT_EQ(report.code, HF_CKPT_OK);
  EXPECT_EQ(report.step, step);
  EXPECT_THAT(report.message, StrEq(""));
}

void SaveOn(const std::string& dir, std::vector<hf_ckpt_group*> groups, Cut cut,
            bool in_place, int64_t step) {
  OnRanks(std::move(groups), [&](hf_ckpt_group* group) {
    JobRank rank(dir, group, cut, in_place);
    hf_ckpt_load_report report = HF_CKPT_LOAD_REPORT_INIT;
    Start(rank, &report);
    EXPECT_EQ(report.loaded, 0);
    rank.Fill(step);
    SaveAndWait(rank, step);
    EXPECT_OK(hf_ckpt_close(rank.ckpt()));
  });
}

void LoadOn(const std::string& dir, std::vector<hf_ckpt_group*> groups, Cut cut,
            bool in_place, int64_t step) {
  OnRanks(std::move(groups), [&](hf_ckpt_group* group) {
    JobRank rank(dir, group, cut, in_place);
    hf_ckpt_load_report report = HF_CKPT_LOAD_REPORT_INIT;
    Start(rank, &report);
    EXPECT_EQ(report.loaded, 1);
    EXPECT_EQ(report.step, step);
    EXPECT_THAT(report.id, HasSubstr("step-"));
    EXPECT_GT(report.bytes_read + report.bytes_received, 0u);
    EXPECT_EQ(rank.Differs(step), "");
    const char* value = nullptr;
    EXPECT_OK(hf_ckpt_loaded_attribute(rank.ckpt(), "note", &value));
    EXPECT_THAT(value, StrEq("hello"));
    EXPECT_OK(hf_ckpt_close(rank.ckpt()));
  });
}

TEST(CInterfaceTest, C99SavesAndReadsBack) {
  TempDir dir;
  EXPECT_STREQ(holdfast_c99_round_trip(dir.path().c_str()), nullptr);
}

TEST(CInterfaceTest, WhatThreeRanksSaveTwoLoadOnAnyOtherCut) {
  for (const bool in_place : {true, false}) {
    for (const Cut from : {Cut::kRows, Cut::kColumns, Cut::kRuns}) {
      TempDir dir;
      SaveOn(dir.path(), ThreadGroups(3), from, in_place, 7);
      for (const Cut to : {Cut::kRows, Cut::kColumns, Cut::kRuns}) {
        LoadOn(dir.path(), ThreadGroups(2), to, !in_place, 7);
      }
    }
  }
}

TEST(CInterfaceTest, RanksMeetThroughSocketsToo) {
  TempDir dir;
  TempDir meeting;
  const auto groups = [&](int ranks) {
    std::vector<hf_ckpt_group*> made(ranks);
    for (int r = 0; r < ranks; ++r) {
      EXPECT_OK(
          hf_ckpt_group_local(meeting.path().c_str(), r, ranks, &made[r]));
    }
    return made;
  };
  SaveOn(dir.path(), groups(3), Cut::kRows, true, 3);
  LoadOn(dir.path(), groups(2), Cut::kColumns, true, 3);
}

TEST(CInterfaceTest, RanksMeetOverTcpToo) {
  TempDir dir;
  const auto groups = [&](int ranks) {
    std::vector<hf_ckpt_listener*> listeners(ranks);
    std::vector<const char*> addresses;
    for (hf_ckpt_listener*& listener : listeners) {
      EXPECT_OK(hf_ckpt_listen("127.0.0.1", &listener));
      addresses.push_back(hf_ckpt_listener_address(listener));
      EXPECT_THAT(addresses.back(), HasSubstr("127.0.0.1:"));
    }
    std::vector<hf_ckpt_group*> made(ranks);
    for (int r = 0; r < ranks; ++r) {
      EXPECT_OK(hf_ckpt_group_tcp(listeners[r], r, ranks, addresses.data(),
                                  "a secret of 20 bytes", &made[r]));
      hf_ckpt_group* again = nullptr;
      EXPECT_EQ(hf_ckpt_group_tcp(listeners[r], r, ranks, addresses.data(),
                                  "a secret of 20 bytes", &again),
                HF_CKPT_FAILED_PRECONDITION);
    }
    for (hf_ckpt_listener* listener : listeners) {
      hf_ckpt_listener_free(listener);
    }
    return made;
  };
  SaveOn(dir.path(), groups(3), Cut::kRows, true, 3);
  LoadOn(dir.path(), groups(2), Cut::kColumns, true, 3);
}

// A transport of the caller's: mailboxes.
struct Post {
  std::mutex lock;
  std::vector<std::deque<std::pair<int, std::vector<char>>>> boxes;
};
struct Postman {
  Post* post;
  int rank;
  std::vector<char> last;
  bool closed = false;

  static void Send(void* user, int32_t to, const void* bytes, uint64_t size) {
    auto* self = static_cast<Postman*>(user);
    const char* const begin = static_cast<const char*>(bytes);
    const std::lock_guard lock(self->post->lock);
    self->post->boxes[to].emplace_back(self->rank,
                                       std::vector<char>(begin, begin + size));
  }
  static int32_t Poll(void* user, int32_t* from, const void** bytes,
                      uint64_t* size) {
    auto* self = static_cast<Postman*>(user);
    const std::lock_guard lock(self->post->lock);
    auto& box = self->post->boxes[self->rank];
    if (box.empty()) return 0;
    *from = box.front().first;
    self->last = std::move(box.front().second);
    box.pop_front();
    *bytes = self->last.data();
    *size = self->last.size();
    return 1;
  }
  static void Close(void* user) { static_cast<Postman*>(user)->closed = true; }
};

TEST(CInterfaceTest, ACallersOwnTransportCarriesAJob) {
  TempDir dir;
  for (const int ranks : {3, 2}) {
    Post post;
    post.boxes.resize(ranks);
    std::vector<Postman> men(ranks);
    std::vector<hf_ckpt_group*> groups(ranks);
    for (int r = 0; r < ranks; ++r) {
      men[r].post = &post;
      men[r].rank = r;
      hf_ckpt_transport transport = HF_CKPT_TRANSPORT_INIT;
      transport.user = &men[r];
      transport.rank = r;
      transport.size = ranks;
      transport.send = Postman::Send;
      transport.poll = Postman::Poll;
      transport.close = Postman::Close;
      ASSERT_OK(hf_ckpt_group_transport(&transport, &groups[r]));
      // No message of anybody: dropped, not believed.
      if (r == 0) Postman::Send(&men[r], 0, "x", 1);
    }
    if (ranks == 3) {
      SaveOn(dir.path(), groups, Cut::kRows, false, 4);
    } else {
      LoadOn(dir.path(), groups, Cut::kColumns, true, 4);
    }
    for (const Postman& man : men) EXPECT_TRUE(man.closed);
  }
}

// In place: the bytes at begin_save are saved though the next step is there.
TEST(CInterfaceTest, SavesTheStateAtBeginSaveWhileTheNextStepRuns) {
  for (const bool in_place : {true, false}) {
    TempDir dir;
    OnRanks(ThreadGroups(2), [&](hf_ckpt_group* group) {
      hf_ckpt_options* options = nullptr;
      EXPECT_OK(hf_ckpt_options_new(&options));
      // A store without before_write dies.
      EXPECT_OK(hf_ckpt_options_set(options, "protect_unreleased", "true"));
      EXPECT_OK(hf_ckpt_options_set(options, "fence_ms", "20000"));
      EXPECT_OK(hf_ckpt_options_set(options, "keep_last", "2"));
      JobRank rank(dir.path(), group, Cut::kRows, in_place, options);
      hf_ckpt_options_free(options);
      Start(rank, nullptr);
      rank.Fill(1);
      for (int64_t step = 1; step <= 5; ++step) {
        ASSERT_OK(hf_ckpt_begin_save(rank.ckpt(), step, nullptr, 0));
        ASSERT_OK(hf_ckpt_before_write(rank.ckpt(), rank.buffer(), 0,
                                       rank.matrix_bytes()));
        rank.Fill(step + 1);
        hf_ckpt_save_report report = HF_CKPT_SAVE_REPORT_INIT;
        int32_t ready = 0;
        ASSERT_OK(hf_ckpt_wait_save(rank.ckpt(), -1, &report, &ready));
        EXPECT_EQ(report.outcome, HF_CKPT_COMMITTED) << report.message;
        EXPECT_EQ(report.bytes_copied > 0 && !in_place, false);
      }
      hf_ckpt_counters counters = HF_CKPT_COUNTERS_INIT;
      EXPECT_OK(hf_ckpt_get_counters(rank.ckpt(), &counters));
      EXPECT_EQ(counters.committed, 5);
      EXPECT_EQ(counters.last_durable_step, 5);
      EXPECT_GT(counters.staged_bytes, 0u);
      // Not closed: hf_ckpt_free does it.
    });
    OnRanks(ThreadGroups(3), [&](hf_ckpt_group* group) {
      JobRank rank(dir.path(), group, Cut::kColumns, in_place);
      Start(rank, nullptr);
      EXPECT_EQ(rank.Differs(5), "");
    });
  }
}

std::vector<int64_t> StepsOf(const std::string& run, int32_t state) {
  hf_ckpt_list* list = nullptr;
  EXPECT_OK(hf_ckpt_list_open(run.c_str(), &list));
  std::vector<int64_t> steps;
  for (uint64_t i = 0; i < hf_ckpt_list_size(list); ++i) {
    hf_ckpt_list_entry entry = HF_CKPT_LIST_ENTRY_INIT;
    EXPECT_OK(hf_ckpt_list_get(list, i, &entry));
    if (entry.state == state) steps.push_back(entry.step);
  }
  hf_ckpt_list_free(list);
  return steps;
}

// One rank whose only item is an array of bytes, as no other job here has it.
class BytesJob {
 public:
  BytesJob(const std::string& run, const char* keep_last) {
    hf_ckpt_group* group = nullptr;
    EXPECT_OK(hf_ckpt_group_single(&group));
    hf_ckpt_options* options = nullptr;
    EXPECT_OK(hf_ckpt_options_new(&options));
    EXPECT_OK(hf_ckpt_options_set(options, "keep_last", keep_last));
    EXPECT_OK(hf_ckpt_new(run.c_str(), group, options, &ckpt));
    hf_ckpt_options_free(options);
    const int64_t bytes = sizeof(memory);
    const int64_t zero = 0;
    uint32_t item = 0;
    EXPECT_OK(
        hf_ckpt_add_item(ckpt, "blob", "bytes", HF_CKPT_U8, 1, &bytes, &item));
    EXPECT_OK(hf_ckpt_add_buffer(ckpt, item, &zero, &bytes, memory, bytes,
                                 HF_CKPT_STAGED, nullptr));
    EXPECT_OK(hf_ckpt_open(ckpt));
  }
  ~BytesJob() { hf_ckpt_free(ckpt); }

  hf_ckpt* ckpt = nullptr;
  uint8_t memory[100] = {};
};

TEST(CInterfaceTest, AClaimLoadsNothingAndGoesOnFromWhatIsThere) {
  TempDir dir;
  SaveOn(dir.path(), ThreadGroups(2), Cut::kRows, true, 7);
  BytesJob job(dir.path(), "3");
  std::memset(job.memory, 42, sizeof(job.memory));
  hf_ckpt_load_request request = HF_CKPT_LOAD_REQUEST_INIT;
  request.resume = HF_CKPT_RESUME_CLAIM;
  hf_ckpt_load_report report = HF_CKPT_LOAD_REPORT_INIT;
  ASSERT_OK(hf_ckpt_load(job.ckpt, &request, &report));
  EXPECT_EQ(report.loaded, 0);
  EXPECT_EQ(report.step, 7);
  EXPECT_THAT(report.id, StrEq("step-000000007.i0001.a01"));
  EXPECT_EQ(report.stepped_over, 0u);
  EXPECT_EQ(job.memory[50], 42);
  hf_ckpt_counters counters = HF_CKPT_COUNTERS_INIT;
  EXPECT_OK(hf_ckpt_get_counters(job.ckpt, &counters));
  EXPECT_EQ(counters.last_durable_step, 7);
  ASSERT_OK(hf_ckpt_begin_save(job.ckpt, 9, nullptr, 0));
  hf_ckpt_save_report saved = HF_CKPT_SAVE_REPORT_INIT;
  int32_t ready = 0;
  ASSERT_OK(hf_ckpt_wait_save(job.ckpt, -1, &saved, &ready));
  ASSERT_EQ(saved.outcome, HF_CKPT_COMMITTED) << saved.message;
  EXPECT_OK(hf_ckpt_close(job.ckpt));
  EXPECT_THAT(StepsOf(dir.path(), HF_CKPT_STATE_COMMITTED),
              testing::ElementsAre(9, 7));
  EXPECT_THAT(StepsOf(dir.path(), HF_CKPT_STATE_SUPERSEDED),
              testing::IsEmpty());
}

TEST(CInterfaceTest, AnEmptyRunIsClaimedToo) {
  TempDir dir;
  BytesJob job(dir.path(), "3");
  hf_ckpt_load_request request = HF_CKPT_LOAD_REQUEST_INIT;
  request.resume = HF_CKPT_RESUME_CLAIM;
  request.init_from = "elsewhere";
  EXPECT_EQ(hf_ckpt_load(job.ckpt, &request, nullptr),
            HF_CKPT_INVALID_ARGUMENT);
  EXPECT_THAT(hf_ckpt_last_error(), HasSubstr("'elsewhere'"));
  request.init_from = nullptr;
  hf_ckpt_load_report report = HF_CKPT_LOAD_REPORT_INIT;
  ASSERT_OK(hf_ckpt_load(job.ckpt, &request, &report));
  EXPECT_EQ(report.loaded, 0);
  EXPECT_THAT(report.id, StrEq(""));
}

TEST(CInterfaceTest, WhoKeepsAllKeepsAll) {
  for (const char* keep : {"1", "all"}) {
    TempDir dir;
    BytesJob job(dir.path(), keep);
    ASSERT_OK(hf_ckpt_load(job.ckpt, nullptr, nullptr));
    for (int64_t step = 1; step <= 5; ++step) {
      ASSERT_OK(hf_ckpt_begin_save(job.ckpt, step, nullptr, 0));
      hf_ckpt_save_report saved = HF_CKPT_SAVE_REPORT_INIT;
      int32_t ready = 0;
      ASSERT_OK(hf_ckpt_wait_save(job.ckpt, -1, &saved, &ready));
      ASSERT_EQ(saved.outcome, HF_CKPT_COMMITTED) << saved.message;
    }
    EXPECT_OK(hf_ckpt_close(job.ckpt));
    EXPECT_EQ(StepsOf(dir.path(), HF_CKPT_STATE_COMMITTED).size(),
              keep[0] == '1' ? 1u : 5u);
  }
}

}  // namespace
}  // namespace holdfast::ckpt

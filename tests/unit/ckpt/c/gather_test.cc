// Ranks are threads; what each brings, all have.

#include "ckpt/c/gather.h"

#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"
#include "ckpt/group/inproc_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::byte> BytesOf(int rank) {
  return std::vector<std::byte>(7 * rank, static_cast<std::byte>(rank));
}

void OnThreads(int ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&, r] { body(r); });
  for (std::thread& thread : threads) thread.join();
}

TEST(GatherTest, EverybodyHasWhatEachHasBrought) {
  for (const int ranks : {1, 2, 5, 23}) {
    auto groups = MakeInprocGroups(ranks);
    OnThreads(ranks, [&](int r) {
      const auto gathered = GatherAll(std::move(groups[r]), BytesOf(r),
                                      absl::Seconds(30), RealClock());
      ASSERT_TRUE(gathered.ok()) << gathered.status();
      ASSERT_EQ(gathered->bytes.size(), static_cast<size_t>(ranks));
      for (int from = 0; from < ranks; ++from) {
        EXPECT_EQ(gathered->bytes[from], BytesOf(from));
      }
      EXPECT_EQ(gathered->group->rank(), Rank{r});
      EXPECT_EQ(gathered->group->size(), ranks);
    });
  }
}

// A fast rank is in its first session while rank 0 still gathers.
TEST(GatherTest, WhatArrivesForOthersIsKeptForThem) {
  auto groups = MakeInprocGroups(3);
  for (uint32_t attempt = 1; attempt <= 3; ++attempt) {
    groups[1]->Send(Rank{0}, {.attempt = attempt, .phase = 1}, {});
  }
  OnThreads(3, [&](int r) {
    auto gathered = GatherAll(std::move(groups[r]), BytesOf(r),
                              absl::Seconds(30), RealClock());
    ASSERT_TRUE(gathered.ok()) << gathered.status();
    if (r != 0) return;
    for (uint32_t attempt = 1; attempt <= 3; ++attempt) {
      const std::optional<Message> message = gathered->group->Poll();
      ASSERT_TRUE(message.has_value());
      EXPECT_EQ(message->tag.attempt, attempt);
    }
    EXPECT_FALSE(gathered->group->Poll().has_value());
  });
}

TEST(GatherTest, WhoDoesNotComeIsNamedOnAllRanks) {
  auto groups = MakeInprocGroups(7);
  OnThreads(7, [&](int r) {
    if (r == 1 || r == 6) return;
    const auto gathered = GatherAll(std::move(groups[r]), BytesOf(r),
                                    absl::Milliseconds(100), RealClock());
    EXPECT_EQ(gathered.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(gathered.status().message()),
                AllOf(HasSubstr("2 of 7 ranks have not come: 1 ("),
                      HasSubstr(", 6 (")));
  });
}

}  // namespace
}  // namespace holdfast::ckpt

// The pool of events, over numbers instead of the CUDA runtime's events.

#include "kernels/cuda_events.h"

#include <set>

#include "gtest/gtest.h"

namespace holdfast::kernels {
namespace {

// Stands for the runtime's events: numbers that have passed or not.
class CudaEventsTest : public ::testing::Test {
 protected:
  Event Record() {
    int handle = events_.Take([&](int open) { return passed_.contains(open); });
    if (handle == 0) handle = ++made_;
    passed_.erase(handle);
    return events_.Add(handle);
  }

  CudaEvents<int> events_;
  std::set<int> passed_;
  int made_ = 0;
};

TEST_F(CudaEventsTest, EachHasItsOwnHandleUntilItHasPassed) {
  const Event a = Record();
  const Event b = Record();
  EXPECT_EQ(events_.Find(a), 1);
  EXPECT_EQ(events_.Find(b), 2);
  events_.Passed(a);
  EXPECT_EQ(events_.Find(a), 0);
  const Event c = Record();
  EXPECT_NE(c, a);
  EXPECT_EQ(events_.Find(c), 1);
  EXPECT_EQ(events_.Find(a), 0);
  EXPECT_EQ(made_, 2);
}

TEST_F(CudaEventsTest, TheDefaultEventHasAlwaysPassed) {
  Record();
  EXPECT_EQ(events_.Find(Event::kPassed), 0);
}

TEST_F(CudaEventsTest, WhatNobodyAsksForIsFoundWhenTheNextIsRecorded) {
  for (int i = 0; i < 1000; ++i) {
    passed_.insert(static_cast<int>(i % 3) + 1);
    Record();
  }
  EXPECT_LE(made_, 4);
  EXPECT_LE(events_.open(), 4u);
}

TEST_F(CudaEventsTest, OneThatIsWaitedForIsNotRecordedAnew) {
  const Event a = Record();
  EXPECT_EQ(events_.Pin(a), 1);
  passed_.insert(1);
  const Event b = Record();
  EXPECT_EQ(events_.Find(b), 2);
  events_.Passed(a);
  EXPECT_EQ(events_.Find(Record()), 3);
  events_.Unpin(a, true);
  EXPECT_EQ(events_.Find(a), 0);
  EXPECT_EQ(events_.Find(Record()), 1);
}

TEST_F(CudaEventsTest, TwoMayWaitForTheSame) {
  const Event a = Record();
  events_.Pin(a);
  events_.Pin(a);
  events_.Unpin(a, true);
  EXPECT_EQ(events_.Find(a), 1);
  events_.Unpin(a, true);
  EXPECT_EQ(events_.Find(a), 0);
}

TEST_F(CudaEventsTest, ClearGivesEveryHandleOnce) {
  events_.Passed(Record());
  Record();
  Record();
  std::multiset<int> seen;
  events_.Clear([&](int handle) { seen.insert(handle); });
  EXPECT_EQ(seen.size(), static_cast<size_t>(made_));
  EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), seen.size());
}

}  // namespace
}  // namespace holdfast::kernels

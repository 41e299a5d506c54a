// Units that two calls share: read by one, had by both, and gone afterwards.

#include "ckpt/convert/kept_units.h"

#include <cstddef>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using Found = KeptUnits::Found;
const std::vector<std::byte> kUnit(100, std::byte{7});

TEST(KeptUnitsTest, TheSecondCallHasWhatTheFirstRead) {
  KeptUnits kept(1000);
  KeptUnits::Bytes bytes;
  EXPECT_EQ(kept.Find({0, 1}, 100, 60, 90, &bytes), Found::kMine);
  kept.Put({0, 1}, kUnit);
  EXPECT_EQ(kept.Find({0, 1}, 100, 20, 90, &bytes), Found::kHere);
  EXPECT_EQ(*bytes, kUnit);
  EXPECT_EQ(kept.Find({0, 1}, 100, 10, 90, &bytes), Found::kHere);
  // All of it has been wanted: it is gone.
  EXPECT_EQ(kept.Find({0, 1}, 100, 10, 90, &bytes), Found::kMine);
}

TEST(KeptUnitsTest, WhatIsWantedWholeIsNotKept) {
  KeptUnits kept(1000);
  KeptUnits::Bytes bytes;
  EXPECT_EQ(kept.Find({0, 1}, 100, 90, 90, &bytes), Found::kNobody);
}

TEST(KeptUnitsTest, OldUnitsMakeRoomAndThoseThatAreReadDoNot) {
  KeptUnits kept(250);
  KeptUnits::Bytes bytes;
  EXPECT_EQ(kept.Find({0, 1}, 100, 1, 90, &bytes), Found::kMine);
  EXPECT_EQ(kept.Find({0, 2}, 100, 1, 90, &bytes), Found::kMine);
  EXPECT_EQ(kept.Find({0, 3}, 100, 1, 90, &bytes), Found::kNobody);
  kept.Put({0, 1}, kUnit);
  EXPECT_EQ(kept.Find({0, 3}, 100, 1, 90, &bytes), Found::kMine);
  EXPECT_EQ(kept.Find({0, 1}, 100, 1, 90, &bytes), Found::kNobody);
}

TEST(KeptUnitsTest, WhoComesMeanwhileWaitsForTheBytesOrTheirFailure) {
  KeptUnits kept(1000);
  for (const bool good : {true, false}) {
    KeptUnits::Bytes bytes;
    ASSERT_EQ(kept.Find({0, 1}, 100, 60, 90, &bytes), Found::kMine);
    KeptUnits::Bytes got;
    ASSERT_EQ(kept.Find({0, 1}, 100, 30, 90, &bytes), Found::kComing);
    std::thread other([&] { got = kept.Await({0, 1}); });
    if (good) {
      kept.Put({0, 1}, kUnit);
    } else {
      kept.GiveUp({0, 1});
    }
    other.join();
    EXPECT_EQ(got != nullptr, good);
  }
}

}  // namespace
}  // namespace holdfast::ckpt

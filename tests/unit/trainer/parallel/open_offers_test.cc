// tests/unit/trainer/parallel/open_offers_test.cc

#include "trainer/parallel/open_offers.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <thread>

#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

using kernels::Event;

TEST(OpenOffersTest, WhatIsClosedIsNotTakenAnyMore) {
  OpenOffers offers;
  std::byte value{7};
  const OpenOffers::Id first = offers.Open({&value, 1, Event{5}});
  const OpenOffers::Id second = offers.Open({&value, 1, Event{6}});
  EXPECT_NE(first, second);
  EXPECT_EQ(offers.Close(first), Event::kPassed);
  EXPECT_FALSE(offers.Take(first).has_value());

  const auto offer = offers.Take(second);
  ASSERT_TRUE(offer.has_value());
  EXPECT_EQ(offer->data, &value);
  EXPECT_EQ(offer->bytes, 1u);
  EXPECT_EQ(offer->ready, Event{6});
  offers.Taken(second, Event{9});
  EXPECT_EQ(offers.Close(second), Event{9});
  EXPECT_FALSE(offers.Take(second).has_value());
}

// One rank opens, gives up at once and overwrites; the other copies if it may.
TEST(OpenOffersTest, NobodyCopiesFromMemoryAfterItsOfferIsClosed) {
  OpenOffers offers;
  std::atomic<OpenOffers::Id> told = 0;
  std::atomic<int> torn = 0;
  constexpr OpenOffers::Id kRounds = 2000;
  std::thread receiver([&] {
    for (OpenOffers::Id id = 0; id < kRounds; ++id) {
      while (told.load() <= id) std::this_thread::yield();
      const auto offer = offers.Take(id);
      if (!offer.has_value()) continue;
      // Not atomic: ThreadSanitizer sees a copy that is not kept apart.
      if (offer->data[0] != offer->data[63]) ++torn;
      offers.Taken(id, Event::kPassed);
    }
  });
  std::array<std::byte, 64> memory{};
  for (OpenOffers::Id round = 0; round < kRounds; ++round) {
    EXPECT_EQ(offers.Open({memory.data(), memory.size(), Event::kPassed}),
              round);
    told = round + 1;
    if (round % 2 == 0) std::this_thread::yield();
    offers.Close(round);
    memory.fill(std::byte(round % 251));
  }
  receiver.join();
  EXPECT_EQ(torn, 0);
}

}  // namespace
}  // namespace holdfast::trainer

// tests/unit/trainer/parallel/open_offers_test.cc

#include "trainer/parallel/open_offers.h"

#include <atomic>
#include <chrono>
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

TEST(OpenOffersTest, ClosingWaitsForWhoeverIsCopying) {
  OpenOffers offers;
  std::byte value{7};
  const OpenOffers::Id id = offers.Open({&value, 1, Event::kPassed});
  ASSERT_TRUE(offers.Take(id).has_value());
  std::atomic<bool> copied = false;
  std::thread sender([&] {
    EXPECT_EQ(offers.Close(id), Event{9});
    EXPECT_TRUE(copied);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  copied = true;
  offers.Taken(id, Event{9});
  sender.join();
}

}  // namespace
}  // namespace holdfast::trainer

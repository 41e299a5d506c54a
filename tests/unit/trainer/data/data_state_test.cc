// The cursor, with and without ranges to step over, and its one spelling.

#include "trainer/data/data_state.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DataStateTest, CursorIsTheIndexWhereNothingIsSkipped) {
  EXPECT_EQ(MapCursor({}, 0), 0);
  EXPECT_EQ(MapCursor({}, 1'000'000'000'000), 1'000'000'000'000);
}

TEST(DataStateTest, SkippedRangesAreSteppedOver) {
  const std::vector<IndexRange> skipped = {{0, 2}, {4, 6}, {7, 8}};
  std::vector<uint64_t> indices;
  for (uint64_t n = 0; n < 6; ++n) indices.push_back(MapCursor(skipped, n));
  EXPECT_THAT(indices, ElementsAre(2, 3, 6, 8, 9, 10));
}

TEST(DataStateTest, ConsumedIndicesAreAllOthersInOrder) {
  DataState state;
  ASSERT_TRUE(SkipRange(state, {40, 60}).ok());
  ASSERT_TRUE(SkipRange(state, {90, 91}).ok());
  ASSERT_TRUE(SkipRange(state, {12, 13}).ok());
  std::vector<uint64_t> expected;
  for (uint64_t i = 0; expected.size() < 100; ++i) {
    if (i != 12 && (i < 40 || i >= 60) && i != 90) expected.push_back(i);
  }
  std::vector<uint64_t> consumed;
  // Batches of another size on the way change nothing.
  for (const size_t step : {7, 30, 3, 60}) {
    std::vector<uint64_t> batch(step);
    NextIndices(state, batch);
    state.cursor += step;
    consumed.insert(consumed.end(), batch.begin(), batch.end());
  }
  EXPECT_EQ(consumed, expected);
}

TEST(DataStateTest, RangesAreSortedAndThoseThatTouchAreOne) {
  DataState state;
  ASSERT_TRUE(SkipRange(state, {50, 60}).ok());
  ASSERT_TRUE(SkipRange(state, {10, 20}).ok());
  ASSERT_TRUE(SkipRange(state, {20, 30}).ok());
  ASSERT_TRUE(SkipRange(state, {55, 70}).ok());
  ASSERT_TRUE(SkipRange(state, {12, 13}).ok());
  EXPECT_THAT(state.skipped,
              ElementsAre(IndexRange{10, 30}, IndexRange{50, 70}));
}

TEST(DataStateTest, WhatIsConsumedCannotBeSkipped) {
  DataState state{.cursor = 10, .skipped = {{4, 6}}};  // Next is 12.
  EXPECT_TRUE(SkipRange(state, {12, 13}).ok());
  const absl::Status status = SkipRange(state, {11, 20});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("those before 13 are consumed"));
  EXPECT_FALSE(SkipRange(state, {30, 30}).ok());
  EXPECT_THAT(state.skipped, ElementsAre(IndexRange{4, 6}, IndexRange{12, 13}));
}

TEST(DataStateTest, TextGivesTheStateBack) {
  for (const DataState& state : std::vector<DataState>{
           {}, {.cursor = 128, .skipped = {{40, 60}, {90, 100}}}}) {
    const auto again = ParseDataState(DataStateText(state));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, state);
  }
  EXPECT_EQ(DataStateText({.cursor = 128, .skipped = {{40, 60}, {90, 100}}}),
            "cursor=128 skipped=40-60,90-100");
}

TEST(DataStateTest, OtherTextIsRefused) {
  for (const char* text :
       {"", "cursor=", "cursor=1 ", "cursor=-1",
        "cursor=1 skipped=", "cursor=1 skipped=4", "cursor=1 skipped=4-",
        "cursor=1 skipped=6-4", "cursor=1 skipped=4-6,",
        "cursor=1 skipped=4-6,5-9", "cursor=1 skipped=4-6,6-9", "cursor=01",
        "cursor=1 skipped=4-6 x", "cursor=99999999999999999999"}) {
    EXPECT_FALSE(ParseDataState(text).ok()) << "'" << text << "'";
  }
}

}  // namespace
}  // namespace holdfast::trainer

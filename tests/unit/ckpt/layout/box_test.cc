// Runs of boxes are compared with a walk over every element, for every run of
// several small boxes.

#include "ckpt/layout/box.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Coordinate = std::array<int64_t, kDimensionsMax>;

// Every coordinate of `box` in its row-major order, found by counting up.
std::vector<Coordinate> Walk(const Box& box) {
  std::vector<Coordinate> all;
  Coordinate at = box.first;
  for (int64_t n = box.elements(); n > 0; --n) {
    all.push_back(at);
    for (int d = box.dimensions - 1; d >= 0; --d) {
      if (++at[d] < box.first[d] + box.count[d]) break;
      at[d] = box.first[d];
    }
  }
  return all;
}

Box MakeBox(std::vector<int64_t> first, std::vector<int64_t> count) {
  Box box = WholeBox(count);
  std::copy(first.begin(), first.end(), box.first.begin());
  return box;
}

TEST(BoxTest, TheDrawingOfTheHeader) {
  EXPECT_THAT(BoxesOfRun(WholeBox(std::vector<int64_t>{4, 6}), 3, 14),
              ElementsAre(MakeBox({0, 3}, {1, 3}), MakeBox({1, 0}, {1, 6}),
                          MakeBox({2, 0}, {1, 5})));
}

TEST(BoxTest, EveryRunIsAtMost2dMinus1BoxesInOrderAndComplete) {
  const std::vector<Box> parts = {
      MakeBox({7}, {9}), MakeBox({2, 5}, {4, 6}), MakeBox({0, 3, 1}, {3, 4, 5}),
      MakeBox({1, 0, 9, 2}, {2, 3, 2, 3}), MakeBox({0, 0, 0}, {1, 1, 6})};
  for (const Box& part : parts) {
    const std::vector<Coordinate> order = Walk(part);
    const int64_t elements = part.elements();
    for (int64_t first = 0; first <= elements; ++first) {
      for (int64_t count = 0; first + count <= elements; ++count) {
        const std::vector<Box> boxes = BoxesOfRun(part, first, count);
        EXPECT_LE(boxes.size(), size_t(2 * part.dimensions - 1));
        std::vector<Coordinate> walked;
        for (const Box& box : boxes) {
          const std::vector<Coordinate> piece = Walk(box);
          walked.insert(walked.end(), piece.begin(), piece.end());
        }
        ASSERT_EQ(walked,
                  std::vector<Coordinate>(order.begin() + first,
                                          order.begin() + first + count))
            << ToString(part) << " elements " << first << " + " << count;
      }
    }
  }
}

TEST(BoxTest, AScalarIsOneElement) {
  const Box scalar = WholeBox({});
  EXPECT_EQ(scalar.elements(), 1);
  EXPECT_THAT(BoxesOfRun(scalar, 0, 1), ElementsAre(scalar));
  EXPECT_THAT(BoxesOfRun(scalar, 0, 0), IsEmpty());
  EXPECT_EQ(Intersect(scalar, scalar), scalar);
  EXPECT_EQ(ToString(scalar), "[]");
}

TEST(BoxTest, IntersectsElementByElement) {
  const Box a = MakeBox({2, 0}, {4, 6});
  const Box b = MakeBox({5, 3}, {4, 9});
  EXPECT_EQ(Intersect(a, b), MakeBox({5, 3}, {1, 3}));
  EXPECT_EQ(Intersect(a, MakeBox({6, 0}, {1, 6})), std::nullopt);
  EXPECT_EQ(Intersect(a, MakeBox({2, 3}, {0, 2})), std::nullopt);
  EXPECT_EQ(ToString(a), "[2:6, 0:6]");
}

}  // namespace
}  // namespace holdfast::ckpt

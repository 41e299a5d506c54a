// What ranks say about their buffers becomes one layout, or an error that names
// who and what.

#include "ckpt/c/declared_layout.h"

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

ItemSpec Item(std::string name, std::vector<int64_t> shape) {
  return {std::move(name), "weight", DType::kF32, std::move(shape)};
}

Box BoxAt(std::vector<int64_t> first, std::vector<int64_t> count) {
  Box box;
  box.dimensions = static_cast<int>(first.size());
  std::copy(first.begin(), first.end(), box.first.begin());
  std::copy(count.begin(), count.end(), box.count.begin());
  return box;
}

// A rank that holds `boxes` of `item`, each in a region of its own.
Declaration Holds(const ItemSpec& item, const std::vector<Box>& boxes) {
  Declaration out;
  out.items = {item};
  for (const Box& box : boxes) {
    out.holding.fragments.push_back(
        {.item = 0,
         .part = box,
         .first = 0,
         .count = box.elements(),
         .region = static_cast<uint32_t>(out.holding.region_bytes.size()),
         .offset = 0});
    out.holding.region_bytes.push_back(RoundUp(box.elements() * 4, 4096));
  }
  return out;
}

std::string ErrorOf(std::vector<Declaration> declarations) {
  const auto layout = DeclaredLayout::Make(std::move(declarations));
  EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument)
      << layout.status();
  return std::string(layout.status().message());
}

TEST(DeclaredLayoutTest, WhatSeveralHoldTheLowestStoresAndAllWant) {
  const ItemSpec cut = Item("cut", {4, 6});
  const ItemSpec copied = Item("copied", {5});
  const Box whole = BoxAt({0}, {5});
  std::vector<Declaration> all;
  for (int r = 0; r < 2; ++r) {
    // Each names its items in another order.
    Declaration declaration = Holds(cut, {BoxAt({0, 3 * r}, {4, 3})});
    declaration.items.insert(declaration.items.begin() + r, copied);
    declaration.holding.fragments[0].item = 1 - r;
    declaration.holding.region_bytes.push_back(4096);
    declaration.holding.fragments.push_back({.item = static_cast<ItemIndex>(r),
                                             .part = whole,
                                             .first = 0,
                                             .count = 5,
                                             .region = 1,
                                             .offset = 0});
    all.push_back(std::move(declaration));
  }
  const auto layout = DeclaredLayout::Make(std::move(all));
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ((*layout)->world(), 2);
  EXPECT_EQ((*layout)->description(), "ranks2");
  EXPECT_EQ((*layout)->items(), (std::vector<ItemSpec>{copied, cut}));
  EXPECT_THAT((*layout)->StoredBy(Rank{0}).fragments, SizeIs(2));
  ASSERT_THAT((*layout)->StoredBy(Rank{1}).fragments, SizeIs(1));
  EXPECT_EQ((*layout)->StoredBy(Rank{1}).fragments[0].item, 1u);
  EXPECT_THAT((*layout)->WantedBy(Rank{1}).fragments, SizeIs(2));
  EXPECT_THAT((*layout)->StoredBy(Rank{1}).region_bytes, SizeIs(2));
}

TEST(DeclaredLayoutTest, ARunOfAFlattenedTensorIsHeldLikeABox) {
  const ItemSpec item = Item("flat", {3, 7});
  std::vector<Declaration> all;
  for (int r = 0; r < 2; ++r) {
    Declaration declaration = Holds(item, {WholeBox(item.shape)});
    declaration.holding.fragments[0].first = r == 0 ? 0 : 10;
    declaration.holding.fragments[0].count = r == 0 ? 10 : 11;
    all.push_back(std::move(declaration));
  }
  EXPECT_TRUE(DeclaredLayout::Make(all).ok());
  all[1].holding.fragments[0].first = 9;
  EXPECT_THAT(ErrorOf(all), AllOf(HasSubstr("elements 0 to 9 of [0:3, 0:7]"),
                                  HasSubstr("overlap")));
  all[1].holding.fragments[0].first = 10;
  all[1].holding.fragments[0].count = 10;
  EXPECT_THAT(ErrorOf(all), HasSubstr("no rank holds [2:3, 6:7]"));
}

TEST(DeclaredLayoutTest, NamesElementsThatNobodyHolds) {
  const ItemSpec item = Item("wte", {8, 4});
  EXPECT_THAT(
      ErrorOf({Holds(item, {BoxAt({0, 0}, {8, 2})}),
               Holds(item, {BoxAt({0, 2}, {5, 2})})}),
      AllOf(HasSubstr("'wte' (weight) f32[8,4]"),
            HasSubstr("no rank holds [5:8, 2:4]"), HasSubstr("26 of 32")));
  EXPECT_THAT(ErrorOf({Holds(item, {})}), HasSubstr("0 of 32"));
}

TEST(DeclaredLayoutTest, NamesBoxesThatOverlapAndAreNotTheSame) {
  const ItemSpec item = Item("wte", {8, 4});
  EXPECT_THAT(
      ErrorOf({Holds(item, {BoxAt({0, 0}, {5, 4})}),
               Holds(item, {BoxAt({4, 0}, {4, 4})})}),
      AllOf(HasSubstr("rank 0 holds [0:5, 0:4] and rank 1 holds [4:8, 0:4]"),
            HasSubstr("overlap")));
  // As many elements as there are, some twice and some not at all.
  EXPECT_THAT(ErrorOf({Holds(item, {BoxAt({0, 0}, {8, 2})}),
                       Holds(item, {BoxAt({0, 1}, {8, 2})})}),
              HasSubstr("overlap"));
}

TEST(DeclaredLayoutTest, NamesRanksThatDifferAboutAnItem) {
  const ItemSpec a = Item("x", {4});
  const ItemSpec b = Item("x", {5});
  EXPECT_THAT(
      ErrorOf({Holds(a, {WholeBox(a.shape)}), Holds(b, {WholeBox(b.shape)})}),
      AllOf(HasSubstr("rank 0 says that it is f32[4]"),
            HasSubstr("rank 1 that it is f32[5]")));
}

TEST(DeclaredLayoutTest, SaysWhichRankCannotTakePart) {
  Declaration failed;
  failed.status = absl::ResourceExhaustedError("no memory left");
  const ItemSpec item = Item("x", {});
  const auto layout =
      DeclaredLayout::Make({Holds(item, {WholeBox({})}), failed});
  EXPECT_EQ(layout.status(),
            absl::ResourceExhaustedError("rank 1: no memory left"));
}

// 1,000 ranks that cut columns: what is compared must not be all pairs.
TEST(DeclaredLayoutTest, ManyRanksAreCheckedInAMoment) {
  const ItemSpec item = Item("wide", {64, 4000});
  std::vector<Declaration> all;
  for (int r = 0; r < 1000; ++r) {
    all.push_back(Holds(item, {BoxAt({0, 4 * r}, {64, 4})}));
  }
  EXPECT_TRUE(DeclaredLayout::Make(all).ok());
  all[500].holding.fragments.clear();
  EXPECT_THAT(ErrorOf(all), HasSubstr("no rank holds [0:64, 2000:2004]"));
}

TEST(DeclaredWireTest, ComesBackAsItWas) {
  Declaration sent = Holds(Item("a", {2, 3}), {BoxAt({0, 1}, {2, 2})});
  sent.items.push_back(Item("scalar", {}));
  sent.layout = "tp2";
  sent.holding.region_bytes.push_back(8192);
  sent.holding.fragments.push_back({.item = 1,
                                    .part = {},
                                    .first = 0,
                                    .count = 1,
                                    .region = 1,
                                    .offset = 4096});
  const auto got = DecodeDeclaration(Encode(sent));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->items, sent.items);
  EXPECT_EQ(got->layout, "tp2");
  EXPECT_EQ(got->holding.region_bytes, sent.holding.region_bytes);
  EXPECT_EQ(got->holding.fragments, sent.holding.fragments);
  Declaration failed;
  failed.status = absl::NotFoundError("gone");
  EXPECT_EQ(DecodeDeclaration(Encode(failed))->status, failed.status);
}

TEST(DeclaredWireTest, OtherBytesAreRefused) {
  const std::vector<std::byte> good =
      Encode(Holds(Item("a", {2, 3}), {BoxAt({0, 1}, {2, 2})}));
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(DecodeDeclaration({good.data(), size}).ok()) << size;
  }
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int flip : {1, 0x80, 0xff}) {
      std::vector<std::byte> bad = good;
      bad[at] ^= static_cast<std::byte>(flip);
      const auto got = DecodeDeclaration(bad);
      // Some are other good declarations; none may break what follows.
      if (got.ok()) (void)DeclaredLayout::Make({*got});
    }
  }
}

}  // namespace
}  // namespace holdfast::ckpt

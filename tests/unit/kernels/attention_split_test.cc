// How the gradients of keys and values are divided over blocks.

#include "kernels/attention_split.h"

#include <vector>

#include "gtest/gtest.h"

namespace holdfast::kernels {
namespace {

AttentionShape Shape(int64_t sequences, int64_t positions, int64_t heads,
                     int64_t kv_heads, int64_t head_dim = 128) {
  return {.sequences = sequences,
          .positions = positions,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim};
}

TEST(AttentionSplitTest, OneKeyHeadAndOneLongSequenceAreCutIntoEqualParts) {
  // One rank of 8 of a model of 500B parameters.
  const KeyGradientSplit split = SplitKeyGradients(Shape(1, 4096, 16, 1));
  EXPECT_EQ(split.parts, 16);
  EXPECT_EQ(split.part_tiles, 66);  // 1,024 pass by the first of 32 tiles.
  const KeyGradientSplit longer = SplitKeyGradients(Shape(1, 8192, 16, 1));
  EXPECT_EQ(longer.parts, 8);
  EXPECT_EQ(longer.part_tiles, 260);
}

TEST(AttentionSplitTest, WhatFillsAGpuOrIsShortStaysWhole) {
  for (const AttentionShape& shape : {
           Shape(1, 32768, 16, 1),  // 256 tiles of keys.
           Shape(4, 2048, 32, 8),   // 512
           Shape(12, 2048, 1, 1),   // 192
           Shape(1, 1024, 1, 1),    // Never more than 16 pass by.
           Shape(1, 64, 16, 1),     //
           Shape(0, 4096, 16, 1),   //
           Shape(1, 0, 16, 1),
       }) {
    const KeyGradientSplit split = SplitKeyGradients(shape);
    EXPECT_EQ(split.parts, 1) << shape.sequences << " x " << shape.positions;
    EXPECT_EQ(split.PartsOf(1 << 20), 1);
    EXPECT_EQ(KeyGradientPartials(shape, split), 0);
    EXPECT_EQ(AttentionBackwardScratch<Bf16>(shape),
              AttentionDeltaFloats(shape));
  }
  EXPECT_GT(SplitKeyGradients(Shape(1, 1025, 1, 1)).parts, 1);
}

TEST(AttentionSplitTest, NoShapeTakesMoreThanTheBound) {
  int64_t largest = 0;
  for (int64_t positions : {1, 127, 128, 129, 500, 1088, 1089, 2048, 4000, 4096,
                            6000, 8191, 8192, 16384, 24448}) {
    for (int64_t x : {1, 2, 3, 7, 8, 12, 47, 100, 191}) {
      for (int64_t group : {1, 2, 5, 16, 128}) {
        const AttentionShape shape = Shape(x, positions, group, 1);
        const KeyGradientSplit split = SplitKeyGradients(shape);
        const int64_t floats = KeyGradientPartials(shape, split);
        largest = std::max(largest, floats);
        EXPECT_LE(floats, kKeyGradientPartialsMax)
            << x << " x " << positions << ", " << group;
        if (split.parts == 1) continue;
        EXPECT_GE(split.part_tiles, kPartTilesMin);
        // Parts cover the first tile, and none is empty.
        const int64_t first = KeyTilePasses(shape, 0);
        EXPECT_GE(split.parts * split.part_tiles, first);
        EXPECT_LT((split.parts - 1) * split.part_tiles, first);
        // Few enough to be worth it: at most the aim and one short part each.
        int64_t parts = 0;
        const int64_t tiles = (positions + kKeyTileRows - 1) / kKeyTileRows;
        for (int64_t tile = 0; tile < tiles; ++tile) {
          parts +=
              x * split.PartsOf(static_cast<int>(KeyTilePasses(shape, tile)));
        }
        EXPECT_LE(parts, kKeyGradientParts + x * tiles);
      }
    }
  }
  EXPECT_GT(largest, kKeyGradientPartialsMax / 2) << "the bound is loose";
}

TEST(AttentionSplitTest, ScratchIsWhatTheTypeAndWidthTake) {
  const AttentionShape shape = Shape(1, 4097, 16, 1);
  const int64_t partials = KeyGradientPartials(shape, SplitKeyGradients(shape));
  EXPECT_EQ(AttentionDeltaFloats(shape), 4097 * 16);
  EXPECT_GT(partials, 0);
  EXPECT_EQ(AttentionBackwardScratch<Bf16>(shape), 4097 * 16 + partials);
  EXPECT_EQ(AttentionBackwardScratch<float>(shape), 4097 * 16);
  EXPECT_EQ(AttentionBackwardScratch<Bf16>(Shape(1, 4097, 16, 1, 136)),
            4097 * 16);
  EXPECT_EQ(AttentionDeltaFloats(Shape(1, 33, 1, 1)), 36);
}

}  // namespace
}  // namespace holdfast::kernels

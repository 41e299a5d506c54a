// The GPU's attention, whole kernels on the host's warp, against the
// processor's. The host's warp is a model of the instructions: what it cannot
// show is said in kernels/cuda_warp_host.h.

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/attention_split.h"
#include "kernels/cuda_attention_host.h"
#include "kernels/cuda_attention_run.h"
#include "kernels/cuda_host_block.h"
#include "tests/unit/kernels/attention_problem.h"

namespace holdfast::kernels {
namespace {

using Problem = AttentionProblem<Bf16>;

WarpCounts Forward(const Problem& problem, Problem::Results& results,
                   HostOrder order = HostOrder::kForward) {
  WarpCounts counts;
  RunAttentionForward(problem.Forward(results),
                      AttentionHostRunner{.order = order, .counts = &counts});
  return counts;
}

// Scratch starts as NaN: what is read of it must have been written.
WarpCounts BackwardIn(const KeyGradientSplit& split, const Problem& problem,
                      Problem::Results& results,
                      HostOrder order = HostOrder::kForward,
                      int64_t* partials_written = nullptr) {
  WarpCounts counts;
  std::vector<float> scratch(AttentionDeltaFloats(problem.shape) +
                                 KeyGradientPartials(problem.shape, split),
                             NAN);
  RunAttentionBackward(problem.Backward(results), split, scratch.data(),
                       AttentionHostRunner{.order = order, .counts = &counts});
  if (partials_written != nullptr) {
    *partials_written =
        std::count_if(scratch.begin() + AttentionDeltaFloats(problem.shape),
                      scratch.end(), [](float x) { return !std::isnan(x); });
  }
  return counts;
}

WarpCounts Backward(const Problem& problem, Problem::Results& results,
                    HostOrder order = HostOrder::kForward) {
  return BackwardIn(SplitKeyGradients(problem.shape), problem, results, order);
}

// Into parts of `part_tiles` passing tiles.
KeyGradientSplit InPartsOf(int part_tiles, const AttentionShape& shape) {
  KeyGradientSplit split{.parts = 2, .part_tiles = part_tiles};
  split.parts = split.PartsOf(static_cast<int>(KeyTilePasses(shape, 0)));
  return split;
}

void ExpectTheProcessorsResults(const AttentionShape& shape) {
  SCOPED_TRACE(testing::Message()
               << shape.positions << " positions, " << shape.heads << " heads, "
               << shape.head_dim << " wide");
  const Problem p(shape, 7);
  const Problem::Results expected = p.Expected();
  Problem::Results actual = p.NoResults();
  const WarpCounts forward = Forward(p, actual);
  EXPECT_EQ(forward.launches, 1);
  EXPECT_EQ(forward.conflicts, 0);
  ExpectForwardNear(p, actual, expected);
  const WarpCounts backward = Backward(p, actual);
  EXPECT_EQ(backward.launches, 2);
  EXPECT_EQ(backward.conflicts, 0);
  ExpectBackwardNear(p, actual, expected);
}

TEST(CudaAttentionTest, OnWarpsItIsTheProcessorsAttention) {
  ExpectTheProcessorsResults({.sequences = 1,
                              .positions = 1,
                              .heads = 1,
                              .kv_heads = 1,
                              .head_dim = 64});
  ExpectTheProcessorsResults({.sequences = 2,
                              .positions = 37,
                              .heads = 4,
                              .kv_heads = 1,
                              .head_dim = 64});
  ExpectTheProcessorsResults({.sequences = 1,
                              .positions = 128,
                              .heads = 1,
                              .kv_heads = 1,
                              .head_dim = 64});
  ExpectTheProcessorsResults({.sequences = 2,
                              .positions = 200,
                              .heads = 2,
                              .kv_heads = 2,
                              .head_dim = 64});
}

TEST(CudaAttentionTest, NarrowHeadsAreFilledUpWithZeros) {
  ExpectTheProcessorsResults({.sequences = 1,
                              .positions = 265,
                              .heads = 1,
                              .kv_heads = 1,
                              .head_dim = 40});
  ExpectTheProcessorsResults({.sequences = 1,
                              .positions = 65,
                              .heads = 8,
                              .kv_heads = 1,
                              .head_dim = 8});
  ExpectTheProcessorsResults({.sequences = 1,
                              .positions = 130,
                              .heads = 2,
                              .kv_heads = 1,
                              .head_dim = 96});
}

TEST(CudaAttentionTest, OnWarpsWideHeadsAreTheProcessorsToo) {
  ExpectTheProcessorsResults({.sequences = 2,
                              .positions = 77,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 128});
  ExpectTheProcessorsResults({.sequences = 1,
                              .positions = 257,
                              .heads = 1,
                              .kv_heads = 1,
                              .head_dim = 128});
  ExpectTheProcessorsResults({.sequences = 1,
                              .positions = 40,
                              .heads = 8,
                              .kv_heads = 1,
                              .head_dim = 128});
}

// What a missing barrier or a copy not waited for would change.
TEST(CudaAttentionTest, NoOrderOfWarpsOrBlocksChangesABit) {
  const Problem p({.sequences = 2,
                   .positions = 150,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_dim = 64},
                  5);
  Problem::Results first = p.NoResults();
  Problem::Results last = p.NoResults();
  Forward(p, first);
  Backward(p, first);
  Forward(p, last, HostOrder::kBackward);
  Backward(p, last, HostOrder::kBackward);
  EXPECT_TRUE(SameBits(first.out, last.out));
  EXPECT_TRUE(SameBits(first.lse, last.lse));
  EXPECT_TRUE(SameBits(first.dqkv, last.dqkv));
}

// Groups of 1, 2 and 16 heads; parts that end within a head, between heads, at
// the diagonal, and last ones that are shorter; tiles with one part beside
// others. Against the processor, and in either order of blocks.
TEST(CudaAttentionTest, TheGradientsOfKeysInPartsAreTheProcessorsToo) {
  const struct {
    AttentionShape shape;
    int part_tiles;
  } cases[] = {
      {{.sequences = 2,
        .positions = 201,
        .heads = 2,
        .kv_heads = 2,
        .head_dim = 64},
       1},
      {{.sequences = 1,
        .positions = 200,
        .heads = 2,
        .kv_heads = 1,
        .head_dim = 128},
       3},
      {{.sequences = 1,
        .positions = 70,
        .heads = 16,
        .kv_heads = 1,
        .head_dim = 128},
       5},
      {{.sequences = 3,
        .positions = 193,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 40},
       4},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message()
                 << c.shape.positions << " positions, " << c.shape.heads
                 << " heads, " << c.part_tiles << " tiles a part");
    const Problem p(c.shape, 11);
    const KeyGradientSplit split = InPartsOf(c.part_tiles, p.shape);
    ASSERT_GT(split.parts, 1);
    const Problem::Results expected = p.Expected();
    Problem::Results actual = p.NoResults();
    Forward(p, actual);
    Problem::Results last_first = actual;
    Problem::Results whole = actual;
    int64_t written = 0;
    const WarpCounts counts =
        BackwardIn(split, p, actual, HostOrder::kForward, &written);
    EXPECT_EQ(counts.conflicts, 0);
    ExpectBackwardNear(p, actual, expected);
    BackwardIn(split, p, last_first, HostOrder::kBackward);
    EXPECT_TRUE(SameBits(actual.dqkv, last_first.dqkv));
    // The same products as in one part, and the same bits where there is one.
    EXPECT_EQ(BackwardIn({}, p, whole).products, counts.products);
    int64_t expected_written = 0;
    for (int64_t row = 0; row < p.rows(); ++row) {
      const int64_t tile = row % p.shape.positions / kKeyTileRows;
      const int parts =
          split.PartsOf(static_cast<int>(KeyTilePasses(p.shape, tile)));
      if (parts > 1) {
        expected_written += parts * 2 * p.shape.kv_heads * p.shape.head_dim;
      }
      for (int64_t c = 0; c < p.stride(); ++c) {
        if (parts > 1 && c >= p.k_at()) continue;
        ASSERT_EQ(actual.dqkv[row * p.stride() + c].bits,
                  whole.dqkv[row * p.stride() + c].bits)
            << "row " << row << ", column " << c;
      }
    }
    EXPECT_EQ(written, expected_written);
  }
}

// What one rank of 8 has of a model with 8 key heads, but shorter: the split
// that its shape asks for.
TEST(CudaAttentionTest, OneKeyHeadOfManyQueryHeadsIsSplitByItsShape) {
  const Problem p({.sequences = 1,
                   .positions = 129,
                   .heads = 16,
                   .kv_heads = 1,
                   .head_dim = 64},
                  5);
  ASSERT_EQ(SplitKeyGradients(p.shape).parts, 3);
  Problem::Results actual = p.NoResults();
  Forward(p, actual);
  std::vector<float> scratch(AttentionBackwardScratch<Bf16>(p.shape), NAN);
  RunAttentionBackward(p.Backward(actual), scratch.data(),
                       AttentionHostRunner());
  ExpectBackwardNear(p, actual, p.Expected());
}

// A part after the other, in FP32, rounded once.
TEST(CudaAttentionTest, PartsAreAddedInTheirOrder) {
  const Problem p({.sequences = 2,
                   .positions = 130,
                   .heads = 4,
                   .kv_heads = 2,
                   .head_dim = 24},
                  5);
  const AttentionShape& shape = p.shape;
  // Six passing tiles: three parts; two of the second tile: one.
  const KeyGradientSplit split = InPartsOf(2, shape);
  ASSERT_EQ(split.parts, 3);
  std::vector<float> partial =
      RandomValues<float>(KeyGradientPartials(shape, split), 3);
  const int64_t part_floats = static_cast<int64_t>(partial.size()) / 3;
  // The first two cancel, so in any other order the third loses its bits.
  for (int64_t i = 0; i < part_floats; ++i) {
    partial[i] *= 1e8f;
    partial[i + part_floats] = -partial[i];
  }
  Problem::Results results = p.NoResults();
  const AttentionKeyGradientJoin join{
      .args = p.Backward(results), .split = split, .partial = partial.data()};
  RunOnHost(join, join.Blocks());
  Problem::Results expected = p.NoResults();
  int64_t i = 0;
  for (const int64_t column : {p.k_at(), p.v_at()}) {
    for (int64_t s = 0; s < shape.sequences; ++s) {
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        for (int64_t row = 0; row < shape.positions; ++row) {
          for (int64_t c = 0; c < shape.head_dim; ++c, ++i) {
            if (row >= kKeyTileRows) continue;
            expected.dqkv[(s * shape.positions + row) * p.stride() + column +
                          h * shape.head_dim + c] =
                FromFloat<Bf16>(partial[i] + partial[i + part_floats] +
                                partial[i + 2 * part_floats]);
          }
        }
      }
    }
  }
  EXPECT_TRUE(SameBits(results.dqkv, expected.dqkv));
}

// A NaN reaches what the processor's version lets it reach at most, and later
// positions always.
TEST(CudaAttentionTest, ANanInAKeyReachesLaterPositionsAndItsOwnTileAtMost) {
  constexpr int64_t kAt = 200;
  for (int64_t of_v : {0, 1}) {
    Problem p({.sequences = 1,
               .positions = 300,
               .heads = 1,
               .kv_heads = 1,
               .head_dim = 64},
              5);
    p.qkv[kAt * p.stride() + (of_v ? p.v_at() : p.k_at())] = Bf16{0x7fc0};
    Problem::Results results = p.NoResults();
    Forward(p, results);
    for (int64_t row = 0; row < 300; ++row) {
      const bool nan = std::isnan(ToFloat(results.out[row * p.out_stride()]));
      if (row >= kAt) {
        EXPECT_TRUE(nan) << row;
      }
      if (row < kAt / kAttentionTile * kAttentionTile) {
        EXPECT_FALSE(nan) << row;
      }
    }
  }
}

TEST(CudaAttentionTest, LargeScoresDoNotOverflow) {
  Problem p({.sequences = 1,
             .positions = 80,
             .heads = 1,
             .kv_heads = 1,
             .head_dim = 64},
            5);
  for (Bf16& x : p.qkv) x = FromFloat<Bf16>(100.0f * ToFloat(x));
  Problem::Results results = p.NoResults();
  Forward(p, results);
  Backward(p, results);
  for (Bf16 x : results.out) EXPECT_TRUE(std::isfinite(ToFloat(x)));
  for (Bf16 x : results.dqkv) EXPECT_TRUE(std::isfinite(ToFloat(x)));
}

// Half the products of the full square, plus the diagonal: what lies in the
// future is not computed.
TEST(CudaAttentionTest, TheFutureCostsNothing) {
  const Problem p({.sequences = 1,
                   .positions = 512,
                   .heads = 1,
                   .kv_heads = 1,
                   .head_dim = 64},
                  5);
  Problem::Results results = p.NoResults();
  const double square = 512.0 * 512 * 64 / (16 * 8 * 16);  // One product.
  EXPECT_LE(Forward(p, results).products, 2 * square * 0.6);
  EXPECT_LE(Backward(p, results).products, 7 * square * 0.6);
}

// What the tensor cores do not take goes to the plain kernels, by shape, stride
// and address.
TEST(CudaAttentionTest, WhatIsNotOnSixteenBytesOrTooWideGoesThePlainWay) {
  const AttentionShape narrow = {.sequences = 1,
                                 .positions = 40,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = 8};
  const auto expect_plain = [](const Problem& p) {
    Problem::Results actual = p.NoResults();
    EXPECT_EQ(Forward(p, actual).launches, 0);
    EXPECT_EQ(Backward(p, actual).launches, 0);
    const Problem::Results expected = p.Expected();
    ExpectForwardNear(p, actual, expected);
    ExpectBackwardNear(p, actual, expected);
  };
  expect_plain(Problem(narrow, 3, /*row_padding=*/4));
  AttentionShape odd = narrow;
  odd.head_dim = 12;
  expect_plain(Problem(odd, 3));
  AttentionShape wide = narrow;
  wide.head_dim = 136;
  expect_plain(Problem(wide, 3));

  // An address between 16 bytes.
  Problem p(narrow, 3);
  Problem::Results results = p.NoResults();
  AttentionArgs<Bf16> args = p.Forward(results);
  EXPECT_TRUE(AttentionForwardOnWarps(args));
  args.v += 4;
  EXPECT_FALSE(AttentionForwardOnWarps(args));
}

}  // namespace
}  // namespace holdfast::kernels

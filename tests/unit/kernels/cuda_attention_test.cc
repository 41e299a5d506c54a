// The GPU's attention, whole kernels on the host's warp, against the
// processor's. The host's warp is a model of the instructions: what it cannot
// show is said in kernels/cuda_warp_host.h.

#include "kernels/cuda_attention.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda_attention_backward.h"
#include "kernels/cuda_attention_forward.h"
#include "kernels/cuda_attention_plain_backward.h"
#include "kernels/cuda_host_block.h"
#include "tests/unit/kernels/attention_problem.h"

namespace holdfast::kernels {
namespace {

using Problem = AttentionProblem<Bf16>;

// What the blocks of a launch did.
struct Counts {
  int64_t accesses = 0;
  int64_t conflicts = 0;
  int64_t products = 0;
};

template <typename Kernel>
Counts RunOnWarps(const Kernel& kernel, bool last_first = false) {
  const AttentionGrid grid = Kernel::Grid(kernel.args.shape);
  Counts counts;
  for (int64_t i = 0; i < grid.x * grid.y; ++i) {
    const int64_t at = last_first ? grid.x * grid.y - 1 - i : i;
    SharedMemoryOnHost shared(Kernel::kSharedBytes);
    WarpBlock block(&shared, Kernel::Tiles::kWarps, last_first);
    kernel(block, static_cast<int>(at % grid.x), static_cast<int>(at / grid.x),
           static_cast<int>(grid.y));
    counts.accesses += shared.accesses();
    counts.conflicts += shared.conflicts();
    counts.products += shared.products();
  }
  return counts;
}

Counts& operator+=(Counts& sum, const Counts& more) {
  sum.accesses += more.accesses;
  sum.conflicts += more.conflicts;
  sum.products += more.products;
  return sum;
}

template <int kHeadDim>
Counts Forward(const Problem& problem, Problem::Results& results,
               bool last_first = false) {
  return RunOnWarps(
      AttentionForwardBlock<ForwardTiles<kHeadDim>>{
          .args = problem.Forward(results)},
      last_first);
}

template <int kHeadDim>
Counts Backward(const Problem& problem, Problem::Results& results,
                bool last_first = false) {
  const AttentionBackwardArgs<Bf16> args = problem.Backward(results);
  std::vector<float> delta(results.lse.size());
  const AttentionDelta<Bf16, true> sums{.args = args, .delta = delta.data()};
  RunOnHost(sums, sums.Blocks());
  Counts counts = RunOnWarps(
      AttentionBackwardBlock<QueryGradientTiles<kHeadDim>, false>{
          .args = args, .delta = delta.data()},
      last_first);
  counts += RunOnWarps(
      AttentionBackwardBlock<KeyGradientTiles<kHeadDim>, true>{
          .args = args, .delta = delta.data()},
      last_first);
  return counts;
}

template <int kHeadDim>
void ExpectTheProcessorsResults(const AttentionShape& shape) {
  SCOPED_TRACE(testing::Message()
               << shape.positions << " positions, " << shape.heads << " heads, "
               << shape.head_dim << " wide");
  const Problem p(shape, 7);
  const Problem::Results expected = p.Expected();
  Problem::Results actual = p.NoResults();
  EXPECT_EQ(Forward<kHeadDim>(p, actual).conflicts, 0);
  ExpectForwardNear(p, actual, expected);
  EXPECT_EQ(Backward<kHeadDim>(p, actual).conflicts, 0);
  ExpectBackwardNear(p, actual, expected);
}

TEST(CudaAttentionTest, OnWarpsItIsTheProcessorsAttention) {
  ExpectTheProcessorsResults<64>({.sequences = 1,
                                  .positions = 1,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .head_dim = 64});
  ExpectTheProcessorsResults<64>({.sequences = 2,
                                  .positions = 37,
                                  .heads = 4,
                                  .kv_heads = 1,
                                  .head_dim = 64});
  ExpectTheProcessorsResults<64>({.sequences = 1,
                                  .positions = 128,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .head_dim = 64});
  ExpectTheProcessorsResults<64>({.sequences = 2,
                                  .positions = 200,
                                  .heads = 2,
                                  .kv_heads = 2,
                                  .head_dim = 64});
}

TEST(CudaAttentionTest, NarrowHeadsAreFilledUpWithZeros) {
  ExpectTheProcessorsResults<64>({.sequences = 1,
                                  .positions = 265,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .head_dim = 40});
  ExpectTheProcessorsResults<64>({.sequences = 1,
                                  .positions = 65,
                                  .heads = 8,
                                  .kv_heads = 1,
                                  .head_dim = 8});
  ExpectTheProcessorsResults<128>({.sequences = 1,
                                   .positions = 130,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .head_dim = 96});
}

TEST(CudaAttentionTest, OnWarpsWideHeadsAreTheProcessorsToo) {
  ExpectTheProcessorsResults<128>({.sequences = 2,
                                   .positions = 77,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 128});
  ExpectTheProcessorsResults<128>({.sequences = 1,
                                   .positions = 257,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = 128});
  ExpectTheProcessorsResults<128>({.sequences = 1,
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
  Forward<64>(p, first);
  Backward<64>(p, first);
  Forward<64>(p, last, /*last_first=*/true);
  Backward<64>(p, last, /*last_first=*/true);
  EXPECT_TRUE(SameBits(first.out, last.out));
  EXPECT_TRUE(SameBits(first.lse, last.lse));
  EXPECT_TRUE(SameBits(first.dqkv, last.dqkv));
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
    Forward<64>(p, results);
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
  Forward<64>(p, results);
  Backward<64>(p, results);
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
  EXPECT_LE(Forward<64>(p, results).products, 2 * square * 0.6);
  EXPECT_LE(Backward<64>(p, results).products, 7 * square * 0.6);
}

}  // namespace
}  // namespace holdfast::kernels

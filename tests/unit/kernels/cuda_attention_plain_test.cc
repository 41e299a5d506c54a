// The GPU's attention without tensor cores, run on the host, against the
// processor's.

#include "kernels/cuda_attention_plain.h"

#include "gtest/gtest.h"
#include "kernels/cuda_attention_plain_backward.h"
#include "kernels/cuda_host_block.h"
#include "tests/unit/kernels/attention_problem.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class CudaAttentionPlainTest : public testing::Test {};
TYPED_TEST_SUITE(CudaAttentionPlainTest, ComputeTypes);

template <typename T, int kWidth>
typename AttentionProblem<T>::Results Run(const AttentionProblem<T>& problem,
                                          HostOrder order) {
  auto results = problem.NoResults();
  const AttentionForwardPlain<T, kWidth> forward{.args =
                                                     problem.Forward(results)};
  RunOnHost(forward, forward.Blocks(), order);
  const auto args = problem.Backward(results);
  std::vector<float> delta(results.lse.size());
  const AttentionDelta<T, false> sums{.args = args, .delta = delta.data()};
  RunOnHost(sums, sums.Blocks(), order);
  const AttentionBackwardPlain<T, kWidth, false> queries{.args = args,
                                                         .delta = delta.data()};
  RunOnHost(queries, queries.Blocks(), order);
  const AttentionBackwardPlain<T, kWidth, true> keys{.args = args,
                                                     .delta = delta.data()};
  RunOnHost(keys, keys.Blocks(), order);
  return results;
}

template <typename T, int kWidth>
void ExpectTheProcessorsResults(const AttentionShape& shape,
                                int64_t padding = 8) {
  SCOPED_TRACE(testing::Message()
               << shape.positions << " positions, " << shape.heads << " heads, "
               << shape.head_dim << " wide");
  const AttentionProblem<T> p(shape, 7, padding);
  const auto actual = Run<T, kWidth>(p, HostOrder::kForward);
  const auto expected = p.Expected();
  ExpectForwardNear(p, actual, expected);
  ExpectBackwardNear(p, actual, expected);
}

TYPED_TEST(CudaAttentionPlainTest, IsTheProcessorsAttention) {
  ExpectTheProcessorsResults<TypeParam, 64>({.sequences = 1,
                                             .positions = 1,
                                             .heads = 1,
                                             .kv_heads = 1,
                                             .head_dim = 3});
  ExpectTheProcessorsResults<TypeParam, 64>({.sequences = 2,
                                             .positions = 37,
                                             .heads = 4,
                                             .kv_heads = 1,
                                             .head_dim = 64});
  ExpectTheProcessorsResults<TypeParam, 64>({.sequences = 1,
                                             .positions = 150,
                                             .heads = 2,
                                             .kv_heads = 2,
                                             .head_dim = 24},
                                            /*padding=*/1);
  ExpectTheProcessorsResults<TypeParam, 128>({.sequences = 1,
                                              .positions = 65,
                                              .heads = 8,
                                              .kv_heads = 1,
                                              .head_dim = 80});
  ExpectTheProcessorsResults<TypeParam, 256>({.sequences = 1,
                                              .positions = 70,
                                              .heads = 2,
                                              .kv_heads = 1,
                                              .head_dim = 200});
}

TYPED_TEST(CudaAttentionPlainTest, NoOrderOfThreadsOrBlocksChangesABit) {
  const AttentionProblem<TypeParam> p({.sequences = 2,
                                       .positions = 70,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .head_dim = 16},
                                      3);
  const auto forward = Run<TypeParam, 64>(p, HostOrder::kForward);
  const auto backward = Run<TypeParam, 64>(p, HostOrder::kBackward);
  EXPECT_TRUE(SameBits(forward.out, backward.out));
  EXPECT_TRUE(SameBits(forward.lse, backward.lse));
  EXPECT_TRUE(SameBits(forward.dqkv, backward.dqkv));
}

// The wide loads of the row sums, and the narrow ones: lse's layout, and values
// within rounding of each other.
TYPED_TEST(CudaAttentionPlainTest, RowSumsAreTheSameByWideLoads) {
  const AttentionProblem<TypeParam> p({.sequences = 2,
                                       .positions = 33,
                                       .heads = 3,
                                       .kv_heads = 1,
                                       .head_dim = 72},
                                      3);
  auto results = p.NoResults();
  AttentionForward(CpuStream(), p.Forward(results));
  std::vector<float> wide(results.lse.size());
  const AttentionDelta<TypeParam, true> sums{.args = p.Backward(results),
                                             .delta = wide.data()};
  RunOnHost(sums, sums.Blocks());
  for (int64_t s = 0; s < 2; ++s) {
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t i = 0; i < 33; ++i) {
        const int64_t at = (s * 33 + i) * p.out_stride() + h * 72;
        double want = 0.0;
        for (int64_t c = 0; c < 72; ++c) {
          want +=
              double{ToFloat(results.out[at + c])} * ToFloat(p.dout[at + c]);
        }
        EXPECT_NEAR(wide[(s * 3 + h) * 33 + i], want, 1e-5);
      }
    }
  }
}

// Scores near the largest float: the maximum is subtracted before anything
// overflows.
TYPED_TEST(CudaAttentionPlainTest, LargeScoresDoNotOverflow) {
  AttentionProblem<TypeParam> p({.sequences = 1,
                                 .positions = 20,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .head_dim = 4},
                                3);
  for (TypeParam& x : p.qkv) x = FromFloat<TypeParam>(100.0f * ToFloat(x));
  const auto results = Run<TypeParam, 64>(p, HostOrder::kForward);
  for (TypeParam x : results.out) EXPECT_TRUE(std::isfinite(ToFloat(x)));
  for (TypeParam x : results.dqkv) EXPECT_TRUE(std::isfinite(ToFloat(x)));
}

}  // namespace
}  // namespace holdfast::kernels

// The GPU's attention, whole kernels on the host's warp, against the
// processor's. The host's warp is a model of the instructions: what it cannot
// show is said in kernels/cuda_warp_host.h.

#include "kernels/cuda_attention.h"

#include "gtest/gtest.h"
#include "kernels/cuda_attention_forward.h"
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

template <int kHeadDim>
Counts Forward(const Problem& problem, Problem::Results& results,
               bool last_first = false) {
  return RunOnWarps(
      AttentionForwardBlock<ForwardTiles<kHeadDim>>{
          .args = problem.Forward(results)},
      last_first);
}

TEST(CudaAttentionTest, TheForwardOnWarpsIsTheProcessorsForward) {
  const AttentionShape shapes[] = {
      {.sequences = 1,
       .positions = 1,
       .heads = 1,
       .kv_heads = 1,
       .head_dim = 64},
      {.sequences = 2,
       .positions = 37,
       .heads = 4,
       .kv_heads = 1,
       .head_dim = 64},
      {.sequences = 1,
       .positions = 128,
       .heads = 1,
       .kv_heads = 1,
       .head_dim = 64},
      {.sequences = 2,
       .positions = 200,
       .heads = 2,
       .kv_heads = 2,
       .head_dim = 64},
      {.sequences = 1,
       .positions = 321,
       .heads = 1,
       .kv_heads = 1,
       .head_dim = 40},
      {.sequences = 1,
       .positions = 65,
       .heads = 8,
       .kv_heads = 1,
       .head_dim = 8},
  };
  for (const AttentionShape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.positions << " positions, "
                                    << shape.head_dim << " wide");
    const Problem p(shape, 7);
    Problem::Results actual = p.NoResults();
    EXPECT_EQ(Forward<64>(p, actual).conflicts, 0);
    ExpectForwardNear(p, actual, p.Expected());
  }
}

TEST(CudaAttentionTest, TheForwardOfWideHeadsIsTheProcessorsForward) {
  const AttentionShape shapes[] = {
      {.sequences = 2,
       .positions = 77,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 128},
      {.sequences = 1,
       .positions = 300,
       .heads = 1,
       .kv_heads = 1,
       .head_dim = 128},
      {.sequences = 1,
       .positions = 130,
       .heads = 2,
       .kv_heads = 1,
       .head_dim = 96},
  };
  for (const AttentionShape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.positions << " positions, "
                                    << shape.head_dim << " wide");
    const Problem p(shape, 7);
    Problem::Results actual = p.NoResults();
    EXPECT_EQ(Forward<128>(p, actual).conflicts, 0);
    ExpectForwardNear(p, actual, p.Expected());
  }
}

}  // namespace
}  // namespace holdfast::kernels

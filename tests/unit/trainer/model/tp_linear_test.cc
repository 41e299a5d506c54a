// A linear layer over two ranks, with numbers small enough to do by hand.

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/model/stage_core.h"
#include "trainer/parallel/hosted_collectives.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

using ::testing::ElementsAre;

// One row; nothing of a model but its sizes.
StageOptions OneRow(int tp, int tp_rank, int64_t hidden) {
  StageOptions options;
  options.model = {.layers = 0,
                   .hidden = hidden,
                   .heads = 2,
                   .kv_heads = 2,
                   .ffn = 2,
                   .vocab = 2,
                   .seq_len = 1};
  options.compute = ComputeType::kF32;
  options.tp = tp;
  options.tp_rank = tp_rank;
  return options;
}

const std::byte* Base(const std::vector<float>& weights) {
  return reinterpret_cast<const std::byte*>(weights.data());
}

// Input [2, 3] times [[1, 0, 1, 1], [0, 1, 1, 2]] is [2, 3, 5, 8]. A weight is
// stored as [out, in]: the split of the columns is a split of its rows.
TEST(TpLinearTest, ColumnSplitGivesEachRankItsOutputs) {
  const std::vector<float> input = {2, 3};
  const std::vector<float> of_rank_a = {1, 0, 0, 1};
  const std::vector<float> of_rank_b = {1, 1, 1, 2};
  const auto device = kernels::NewCpuDevice();
  const auto outputs = [&](const std::vector<float>& weight) {
    StageCore<float> core(OneRow(1, 0, 4), {}, Base(weight), nullptr, *device);
    std::vector<float> output(2);
    core.ColumnForward({.offset = 0, .in = 2, .out = 2}, input.data(),
                       output.data(), 2);
    return output;
  };
  EXPECT_THAT(outputs(of_rank_a), ElementsAre(2, 3));
  EXPECT_THAT(outputs(of_rank_b), ElementsAre(5, 8));
}

// The next layer takes those outputs where they are: rank A multiplies [2, 3]
// by its columns, rank B [5, 8] by its own, and the sum over ranks is the
// answer on both. Weight rows [1, 1, 1, 1], [1, 2, 0, 0], [0, 0, 1, -1], [3, 0,
// 0, 1]: 2 + 3 + 5 + 8 = 18, 2 + 6 = 8, 5 - 8 = -3, 6 + 8 = 14.
TEST(TpLinearTest, RowSplitAddsThePartsOfTheRanks) {
  const std::vector<float> inputs[2] = {{2, 3}, {5, 8}};
  const std::vector<float> columns[2] = {{1, 1, 1, 2, 0, 0, 3, 0},
                                         {1, 1, 0, 0, 1, -1, 0, 1}};
  const auto device = kernels::NewCpuDevice();
  std::vector<float> outputs[2];
  const absl::Status status = RunInprocRanks(2, [&](Collectives& tp) {
    const int rank = tp.rank();
    const auto joins = NewHostedCollectives(tp, *device);
    StageCore<float> core(OneRow(2, rank, 4), {}, Base(columns[rank]),
                          joins.get(), *device);
    if (const absl::Status opened = core.Open(); !opened.ok()) return opened;
    outputs[rank].resize(4);
    return core.RowForward({.offset = 0, .in = 2, .out = 4},
                           inputs[rank].data(), outputs[rank].data());
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(outputs[0], ElementsAre(18, 8, -3, 14));
  EXPECT_THAT(outputs[1], ElementsAre(18, 8, -3, 14));
}

// And backwards: the gradient of a column-parallel layer's input is the sum of
// what each rank's outputs ask for.
TEST(TpLinearTest, TheGradientOfASharedInputIsAddedOverRanks) {
  const std::vector<float> gradients[2] = {{1, 2}, {3, 4}};
  const std::vector<float> rows[2] = {{1, 0, 0, 0, 0, 1, 0, 0},
                                      {1, 1, 0, 0, 0, 0, 1, 1}};
  const auto device = kernels::NewCpuDevice();
  std::vector<float> of_input[2];
  const absl::Status status = RunInprocRanks(2, [&](Collectives& tp) {
    const int rank = tp.rank();
    const auto joins = NewHostedCollectives(tp, *device);
    StageCore<float> core(OneRow(2, rank, 4), {}, Base(rows[rank]), joins.get(),
                          *device);
    if (const absl::Status opened = core.Open(); !opened.ok()) return opened;
    core.ColumnBackwardInput({.offset = 0, .in = 4, .out = 2},
                             gradients[rank].data(), 2, /*accumulate=*/false);
    of_input[rank].resize(4);
    return core.JoinPartial(of_input[rank].data());
  });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(of_input[0], ElementsAre(4, 5, 4, 4));
  EXPECT_THAT(of_input[1], ElementsAre(4, 5, 4, 4));
}

}  // namespace
}  // namespace holdfast::trainer

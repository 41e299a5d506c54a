// Attention on the device against the processor's, with the tolerances of
// kernels/cuda_attention.h; and its speed.
//
// FLOP of a call, causal: n (n + 1) / 2 pairs of positions for n positions, per
// query head and sequence; a pair costs 2 head_dim in each product, of which
// the forward has 2 and the backward 5 (what it computes again is not counted).

#include <string>

#include "kernels/attention.h"
#include "tests/device/kernel_case.h"
#include "tests/unit/kernels/attention_problem.h"

namespace holdfast::tests {
namespace {

using kernels::AttentionProblem;
using kernels::AttentionShape;

// Device copies of a problem's matrices and results.
template <typename T>
struct OnItsDevice {
  using Results = typename AttentionProblem<T>::Results;

  const AttentionProblem<T>& problem;
  DeviceArray<T> qkv;
  DeviceArray<T> dout;
  DeviceArray<T> out;
  DeviceArray<float> lse;
  DeviceArray<T> dqkv;

  OnItsDevice(kernels::Device& device, const AttentionProblem<T>& of,
              const Results& empty, size_t offset)
      : problem(of),
        qkv(device, of.qkv, offset),
        dout(device, of.dout, offset),
        out(device, empty.out, offset),
        lse(device, empty.lse),
        dqkv(device, empty.dqkv, offset) {}

  kernels::AttentionMatrices<T> Matrices() {
    return {.shape = problem.shape,
            .qkv = qkv.data(),
            .stride = problem.stride(),
            .out = out.data(),
            .dout = dout.data(),
            .out_stride = problem.out_stride(),
            .lse = lse.data(),
            .dqkv = dqkv.data()};
  }
  Results Get(kernels::Stream& stream) {
    return {.out = out.Get(stream),
            .lse = lse.Get(stream),
            .dqkv = dqkv.Get(stream)};
  }
};

class KernelsOnDevice_Attention : public OnDevice {
 protected:
  // `offset` elements before every matrix: not on 16 bytes, so the plain way.
  template <typename T>
  void ExpectTheProcessorsResults(const AttentionShape& shape,
                                  int64_t padding = 8, size_t offset = 0) {
    const uint64_t seed = FreshSeed();
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ", " << shape.sequences << " x "
                 << shape.positions << ", heads " << shape.heads << " of "
                 << shape.kv_heads << ", " << shape.head_dim << " wide, offset "
                 << offset);
    const AttentionProblem<T> problem(shape, seed, padding);
    const auto stream = device().NewStream();
    OnItsDevice<T> there(device(), problem, problem.NoResults(), offset);
    kernels::AttentionForward(*stream, there.Matrices().Forward());
    kernels::AttentionBackward(*stream, there.Matrices().Backward());
    const auto first = there.Get(*stream);
    ASSERT_TRUE(device().status().ok()) << device().status();
    const auto expected = problem.Expected();
    kernels::ExpectForwardNear(problem, first, expected);
    kernels::ExpectBackwardNear(problem, first, expected);
    // Again: the same bits.
    kernels::AttentionForward(*stream, there.Matrices().Forward());
    kernels::AttentionBackward(*stream, there.Matrices().Backward());
    const auto second = there.Get(*stream);
    ExpectSameBits(second.out, first.out);
    ExpectSameBits(second.lse, first.lse);
    ExpectSameBits(second.dqkv, first.dqkv);
  }

  template <typename T>
  void MeasureSpeed(const std::string& name, const AttentionShape& of) {
    AttentionShape shape = of;
    shape.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    const int64_t rows = shape.sequences * shape.positions;
    const int64_t width = shape.heads * shape.head_dim;
    const int64_t stride = width + 2 * shape.kv_heads * shape.head_dim;
    // Values as large as a model's: a processor of zeros draws less power.
    const auto of_size = [&](int64_t count) {
      return DeviceArray<T>(device(), RandomValues<T>(count, FreshSeed()));
    };
    DeviceArray<T> qkv = of_size(rows * stride);
    DeviceArray<T> dout = of_size(rows * width);
    DeviceArray<T> out(device(), static_cast<size_t>(rows * width));
    DeviceArray<T> dqkv(device(), static_cast<size_t>(rows * stride));
    DeviceArray<float> lse(device(), static_cast<size_t>(rows * shape.heads));
    const kernels::AttentionMatrices<T> there = {.shape = shape,
                                                 .qkv = qkv.data(),
                                                 .stride = stride,
                                                 .out = out.data(),
                                                 .dout = dout.data(),
                                                 .out_stride = width,
                                                 .lse = lse.data(),
                                                 .dqkv = dqkv.data()};
    const auto stream = device().NewStream();
    const double pairs = 0.5 * static_cast<double>(shape.positions) *
                         static_cast<double>(shape.positions + 1);
    const double product = pairs * 2.0 * static_cast<double>(shape.head_dim) *
                           static_cast<double>(shape.sequences * shape.heads);
    const double forward_s = SecondsOnDevice(device(), *stream, 5, [&] {
      kernels::AttentionForward(*stream, there.Forward());
    });
    const double backward_s = SecondsOnDevice(device(), *stream, 5, [&] {
      kernels::AttentionBackward(*stream, there.Backward());
    });
    ASSERT_TRUE(device().status().ok()) << device().status();
    RecordFigure("attention forward " + name, "TFLOP/s",
                 2 * product / forward_s / 1e12);
    RecordFigure("attention backward " + name, "TFLOP/s",
                 5 * product / backward_s / 1e12);
  }
};

TEST_F(KernelsOnDevice_Attention, SmallShapesOnTheTensorCores) {
  for (int64_t head_dim : {8, 64, 80, 128}) {
    ExpectTheProcessorsResults<Bf16>({.sequences = 2,
                                      .positions = 77,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .head_dim = head_dim});
    ExpectTheProcessorsResults<Bf16>({.sequences = 1,
                                      .positions = 1,
                                      .heads = 1,
                                      .kv_heads = 1,
                                      .head_dim = head_dim});
  }
}

TEST_F(KernelsOnDevice_Attention, SmallShapesInParts) {
  for (int64_t head_dim : {64, 128}) {
    ExpectTheProcessorsResults<Bf16>({.sequences = 1,
                                      .positions = 193,
                                      .heads = 16,
                                      .kv_heads = 1,
                                      .head_dim = head_dim});
  }
}

TEST_F(KernelsOnDevice_Attention, SmallShapesThePlainWay) {
  ExpectTheProcessorsResults<float>({.sequences = 2,
                                     .positions = 77,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 64});
  ExpectTheProcessorsResults<float>({.sequences = 1,
                                     .positions = 33,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 5},
                                    /*padding=*/1, /*offset=*/1);
  ExpectTheProcessorsResults<Bf16>({.sequences = 1,
                                    .positions = 70,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .head_dim = 64},
                                   /*padding=*/0, /*offset=*/1);
  ExpectTheProcessorsResults<Bf16>({.sequences = 1,
                                    .positions = 70,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .head_dim = 256});
}

TEST_F(KernelsOnDevice_Attention, ShapesOfModels) {
  ExpectTheProcessorsResults<Bf16>({.sequences = 1,
                                    .positions = Many(1024),
                                    .heads = 12,
                                    .kv_heads = 12,
                                    .head_dim = 64},
                                   /*padding=*/0);
  ExpectTheProcessorsResults<Bf16>({.sequences = 1,
                                    .positions = Many(1100) + 7,
                                    .heads = 8,
                                    .kv_heads = 1,
                                    .head_dim = 128});
  // dk and dv divided over blocks: groups of 16, 2 and 1, odd ends.
  ExpectTheProcessorsResults<Bf16>({.sequences = 1,
                                    .positions = Many(1500) + 3,
                                    .heads = 16,
                                    .kv_heads = 1,
                                    .head_dim = 128});
  ExpectTheProcessorsResults<Bf16>({.sequences = 2,
                                    .positions = Many(1100) + 1,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 64});
  ExpectTheProcessorsResults<Bf16>({.sequences = 1,
                                    .positions = Many(2200) + 5,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = 80});
  ExpectTheProcessorsResults<float>({.sequences = 1,
                                     .positions = Many(520) + 1,
                                     .heads = 4,
                                     .kv_heads = 1,
                                     .head_dim = 128});
}

// One token more than what the sequence lengths of kernels divide.
TEST_F(KernelsOnDevice_Attention, EveryLengthAroundATile) {
  for (int64_t positions : {63, 64, 65, 127, 128, 129, 191, 193, 257}) {
    ExpectTheProcessorsResults<Bf16>({.sequences = 2,
                                      .positions = positions,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .head_dim = 64});
    ExpectTheProcessorsResults<Bf16>({.sequences = 1,
                                      .positions = positions,
                                      .heads = 2,
                                      .kv_heads = 1,
                                      .head_dim = 128});
  }
}

TEST_F(KernelsOnDevice_Attention, Speed) {
  if (!HasSpeed(device())) GTEST_SKIP() << "no GPU to measure";
  MeasureSpeed<Bf16>("bf16 64 wide, 12 heads, 32 x 1024", {.sequences = 32,
                                                           .positions = 1024,
                                                           .heads = 12,
                                                           .kv_heads = 12,
                                                           .head_dim = 64});
  MeasureSpeed<Bf16>("bf16 64 wide, 32 heads of 8, 4 x 2048",
                     {.sequences = 4,
                      .positions = 2048,
                      .heads = 32,
                      .kv_heads = 8,
                      .head_dim = 64});
  MeasureSpeed<Bf16>("bf16 128 wide, 16 heads of 2, 2 x 8192",
                     {.sequences = 2,
                      .positions = 8192,
                      .heads = 16,
                      .kv_heads = 2,
                      .head_dim = 128});
  // One rank of 8 of a model with 8 key heads.
  for (const int64_t positions : {4096, 8192}) {
    MeasureSpeed<Bf16>(
        "bf16 128 wide, 16 heads of 1, 1 x " + std::to_string(positions),
        {.sequences = 1,
         .positions = positions,
         .heads = 16,
         .kv_heads = 1,
         .head_dim = 128});
  }
  MeasureSpeed<float>("fp32 64 wide, 12 heads, 4 x 1024", {.sequences = 4,
                                                           .positions = 1024,
                                                           .heads = 12,
                                                           .kv_heads = 12,
                                                           .head_dim = 64});
}

}  // namespace
}  // namespace holdfast::tests

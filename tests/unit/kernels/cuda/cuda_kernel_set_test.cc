// Every kernel's way from its public function through the CUDA kernel set to
// kernels/cuda_launch.h: with launches that the processor does (cpu_launch.cc)
// results are the processor's, to the bit.

#include <cmath>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda_device.h"
#include "kernels/kernel_set.h"
#include "tests/unit/kernels/attention_problem.h"
#include "tests/unit/kernels/cuda/fake_cudart.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRows = 6, kHidden = 24, kVocab = 16;

template <typename T>
class CudaKernelSetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = OpenCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    stream_ = device_->NewCudaStream(CudaPriority::kNormal);
  }
  void TearDown() override {
    EXPECT_TRUE(device_->status().ok()) << device_->status();
    stream_.reset();
    device_.reset();
    ResetFake();
  }

  std::vector<T> Values(int64_t count) {
    return RandomValues<T>(count, ++seed_);
  }
  std::vector<float> Floats(int64_t count) {
    return RandomValues<float>(count, ++seed_, 0.5f);
  }

  // `work` fills what it returns, on the stream that it is given; it draws the
  // same numbers both times.
  template <typename Work>
  void ExpectSame(const char* operation, const Work& work) {
    seed_ = 0;
    const auto expected = work(CpuStream());
    seed_ = 0;
    const auto actual = work(*stream_);
    EXPECT_TRUE(SameBits(expected, actual)) << operation;
    EXPECT_STREQ(stream_->last_operation(), operation);
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CudaStream> stream_;
  uint64_t seed_ = 0;
};
TYPED_TEST_SUITE(CudaKernelSetTest, ComputeTypes);

template <typename T>
std::vector<float> Joined(std::initializer_list<std::vector<T>> parts) {
  std::vector<float> all;
  for (const auto& part : parts) {
    for (const T value : part) all.push_back(ToFloat(value));
  }
  return all;
}

TYPED_TEST(CudaKernelSetTest, Norms) {
  using T = TypeParam;
  this->ExpectSame("RmsNormForward", [&](Stream& stream) {
    const auto x = this->Values(kRows * kHidden), w = this->Values(kHidden);
    std::vector<T> y(x.size());
    std::vector<float> rstd(kRows);
    RmsNormForward(stream, RmsNormArgs<T>{.x = x.data(),
                                          .weight = w.data(),
                                          .y = y.data(),
                                          .rstd = rstd.data(),
                                          .rows = kRows,
                                          .hidden = kHidden});
    return Joined<float>({Joined<T>({y}), rstd});
  });
  this->ExpectSame("RmsNormBackward", [&](Stream& stream) {
    const auto x = this->Values(kRows * kHidden), w = this->Values(kHidden);
    const auto dy = this->Values(kRows * kHidden);
    const auto rstd = this->Floats(kRows);
    std::vector<T> dx(x.size());
    auto dw = this->Floats(kHidden);
    RmsNormBackward(stream, RmsNormBackwardArgs<T>{.x = x.data(),
                                                   .weight = w.data(),
                                                   .rstd = rstd.data(),
                                                   .dy = dy.data(),
                                                   .dx = dx.data(),
                                                   .dweight = dw.data(),
                                                   .rows = kRows,
                                                   .hidden = kHidden});
    return Joined<float>({Joined<T>({dx}), dw});
  });
}

TYPED_TEST(CudaKernelSetTest, Attention) {
  using T = TypeParam;
  const AttentionShape shape = {.sequences = 1,
                                .positions = kRows,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 8,
                                .scale = 0.3f};
  const auto matrices = [&](const std::vector<T>& qkv, std::vector<T>& out,
                            std::vector<float>& lse, const T* dout, T* dqkv) {
    return AttentionMatrices<T>{.shape = shape,
                                .qkv = qkv.data(),
                                .stride = 32,
                                .out = out.data(),
                                .dout = dout,
                                .out_stride = 16,
                                .lse = lse.data(),
                                .dqkv = dqkv};
  };
  this->ExpectSame("AttentionForward", [&](Stream& stream) {
    const auto qkv = this->Values(kRows * 32);
    std::vector<T> out(kRows * 16);
    std::vector<float> lse(2 * kRows);
    AttentionForward(stream,
                     matrices(qkv, out, lse, nullptr, nullptr).Forward());
    return Joined<float>({Joined<T>({out}), lse});
  });
  this->ExpectSame("AttentionBackward", [&](Stream& stream) {
    const auto qkv = this->Values(kRows * 32), dout = this->Values(kRows * 16);
    std::vector<T> out(kRows * 16), dqkv(qkv.size());
    std::vector<float> lse(2 * kRows);
    const auto of = matrices(qkv, out, lse, dout.data(), dqkv.data());
    AttentionForward(CpuStream(), of.Forward());
    AttentionBackward(stream, of.Backward());
    return Joined<T>({dqkv});
  });
}

TYPED_TEST(CudaKernelSetTest, Rotations) {
  using T = TypeParam;
  this->ExpectSame("RopeFillTable", [&](Stream& stream) {
    std::vector<float> table(RopeTableSize(kRows, 8));
    RopeFillTable(stream, table.data(), 3, kRows, 8, 500.0f);
    return table;
  });
  std::vector<float> table(RopeTableSize(kRows, 8));
  RopeFillTable(CpuStream(), table.data(), 0, kRows, 8, 10000.0f);
  for (const bool back : {false, true}) {
    this->ExpectSame("Rope", [&](Stream& stream) {
      auto x = this->Values(kRows * kHidden);
      const RopeArgs<T> args = {.x = x.data(),
                                .stride = kHidden,
                                .sequences = 1,
                                .positions = kRows,
                                .heads = 3,
                                .head_dim = 8,
                                .table = table.data()};
      back ? RopeBackward(stream, args) : RopeForward(stream, args);
      return Joined<T>({x});
    });
  }
}

TYPED_TEST(CudaKernelSetTest, Swiglu) {
  using T = TypeParam;
  this->ExpectSame("SwigluForward", [&](Stream& stream) {
    const auto in = this->Values(kRows * 2 * kHidden);
    std::vector<T> out(kRows * kHidden);
    SwigluForward(stream, SwigluArgs<T>{.gate = in.data(),
                                        .up = in.data() + kHidden,
                                        .in_stride = 2 * kHidden,
                                        .out = out.data(),
                                        .rows = kRows,
                                        .columns = kHidden});
    return Joined<T>({out});
  });
  this->ExpectSame("SwigluBackward", [&](Stream& stream) {
    const auto in = this->Values(kRows * 2 * kHidden);
    const auto dout = this->Values(kRows * kHidden);
    std::vector<T> din(in.size());
    SwigluBackward(stream, SwigluBackwardArgs<T>{.gate = in.data(),
                                                 .up = in.data() + kHidden,
                                                 .in_stride = 2 * kHidden,
                                                 .dout = dout.data(),
                                                 .dgate = din.data(),
                                                 .dup = din.data() + kHidden,
                                                 .dstride = 2 * kHidden,
                                                 .rows = kRows,
                                                 .columns = kHidden});
    return Joined<T>({din});
  });
}

TYPED_TEST(CudaKernelSetTest, Embedding) {
  using T = TypeParam;
  const std::vector<int32_t> tokens = {3, 0, 15, 3, 7, 20};
  this->ExpectSame("EmbeddingForward", [&](Stream& stream) {
    const auto table = this->Values(kVocab * kHidden);
    std::vector<T> out(kRows * kHidden);
    EmbeddingForward(stream, EmbeddingArgs<T>{.tokens = tokens.data(),
                                              .count = kRows,
                                              .table = table.data(),
                                              .vocab_begin = 0,
                                              .vocab_rows = kVocab,
                                              .hidden = kHidden,
                                              .out = out.data()});
    return Joined<T>({out});
  });
  this->ExpectSame("EmbeddingBackward", [&](Stream& stream) {
    const auto dout = this->Values(kRows * kHidden);
    auto dtable = this->Floats(kVocab * kHidden);
    EmbeddingBackward(stream,
                      EmbeddingBackwardArgs<T>{.tokens = tokens.data(),
                                               .count = kRows,
                                               .dout = dout.data(),
                                               .vocab_begin = 0,
                                               .vocab_rows = kVocab,
                                               .hidden = kHidden,
                                               .dtable = dtable.data()});
    return dtable;
  });
}

TYPED_TEST(CudaKernelSetTest, CrossEntropy) {
  using T = TypeParam;
  const std::vector<int32_t> targets = {1, 0, 13, 9, 30, 4};
  const std::vector<float> weights = {0.5f, 1, 0, 2, 1, 0.25f};
  const auto view = [&](const std::vector<T>& logits) {
    return LogitsView<T>{.data = logits.data(),
                         .stride = kVocab,
                         .rows = kRows,
                         .columns = kVocab,
                         .valid_columns = kVocab - 2,
                         .column_begin = 0};
  };
  this->ExpectSame("CrossEntropyMax", [&](Stream& stream) {
    const auto logits = this->Values(kRows * kVocab);
    std::vector<float> row_max(kRows);
    CrossEntropyMax(stream, view(logits), row_max.data());
    return row_max;
  });
  this->ExpectSame("CrossEntropySum", [&](Stream& stream) {
    const auto logits = this->Values(kRows * kVocab);
    const auto row_max = this->Floats(kRows);
    std::vector<float> sum(kRows), target(kRows);
    CrossEntropySum(stream, view(logits), row_max.data(), targets.data(),
                    sum.data(), target.data());
    return Joined<float>({sum, target});
  });
  this->ExpectSame("CrossEntropyLoss", [&](Stream& stream) {
    auto sum = this->Floats(kRows);
    for (float& value : sum) value = std::abs(value) + 1;
    const auto target = this->Floats(kRows);
    std::vector<float> losses(kRows);
    CrossEntropyLoss(stream, kRows, sum.data(), target.data(), weights.data(),
                     losses.data());
    return losses;
  });
  this->ExpectSame("CrossEntropyBackward", [&](Stream& stream) {
    const auto logits = this->Values(kRows * kVocab);
    const auto row_max = this->Floats(kRows);
    auto sum = this->Floats(kRows);
    for (float& value : sum) value = std::abs(value) + 1;
    std::vector<T> dlogits(kRows * (kVocab + 3));
    CrossEntropyBackward(stream, view(logits), row_max.data(), sum.data(),
                         targets.data(), weights.data(), dlogits.data(),
                         kVocab + 3);
    return Joined<T>({dlogits});
  });
}

TYPED_TEST(CudaKernelSetTest, AdamWAndElementwise) {
  using T = TypeParam;
  constexpr int64_t kCount = 100;
  this->ExpectSame("AdamW", [&](Stream& stream) {
    std::vector<T> weight(kCount);
    auto master = this->Floats(kCount), m = this->Floats(kCount);
    auto v = this->Floats(kCount);
    for (float& value : v) value *= value;
    const auto grad = this->Floats(kCount);
    AdamW(stream, AdamWArgs<T>{.weight = weight.data(),
                               .master = master.data(),
                               .moment1 = m.data(),
                               .moment2 = v.data(),
                               .grad = grad.data(),
                               .count = kCount,
                               .step = 3,
                               .grad_scale = 0.7f,
                               .lr = 0.01f,
                               .weight_decay = 0.1f});
    return Joined<float>({Joined<T>({weight}), master, m, v});
  });
  this->ExpectSame("Add", [&](Stream& stream) {
    const auto x = this->Values(kCount), y = this->Values(kCount);
    std::vector<T> out(kCount);
    Add(stream, x.data(), y.data(), out.data(), kCount);
    return Joined<T>({out});
  });
  this->ExpectSame("Scale", [&](Stream& stream) {
    auto x = this->Values(kCount);
    Scale(stream, x.data(), 1.7f, kCount - 1);
    return Joined<T>({x});
  });
  this->ExpectSame("Accumulate", [&](Stream& stream) {
    const auto x = this->Values(kCount);
    auto y = this->Floats(kCount);
    Accumulate(stream, x.data(), y.data(), kCount - 1);
    return y;
  });
  this->ExpectSame("AccumulateMax", [&](Stream& stream) {
    const auto x = this->Floats(kCount);
    auto y = this->Floats(kCount);
    AccumulateMax(stream, x.data(), y.data(), kCount - 1);
    return y;
  });
  this->ExpectSame("Cast", [&](Stream& stream) {
    const auto from = this->Values(kCount);
    std::vector<float> floats(kCount);
    std::vector<Bf16> shorts(kCount);
    Cast(stream, from.data(), floats.data(), kCount);
    Cast(stream, from.data(), shorts.data(), kCount);
    return Joined<float>({floats, Joined<Bf16>({shorts})});
  });
  this->ExpectSame("Zero", [&](Stream& stream) {
    auto x = this->Values(kCount);
    Zero(stream, x.data(), kCount - 4);
    return Joined<T>({x});
  });
  this->ExpectSame("BlockSumsOfSquares", [&](Stream& stream) {
    const auto x = this->Floats(5000);
    std::vector<double> sums(3);
    BlockSumsOfSquares(stream, x.data(), 5000, sums.data());
    return sums;
  });
  this->ExpectSame("SumOfSquares", [&](Stream& stream) {
    const auto x = this->Floats(5000);
    std::vector<double> total(1);
    SumOfSquares(stream, x.data(), 5000, total.data());
    return total;
  });
}

TEST(CudaKernelSetErrorTest, TheSetIsDescribedAndAnErrorIsTheDevices) {
  {
    auto device = OpenCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    const auto stream = (*device)->NewCudaStream(CudaPriority::kNormal);
    EXPECT_THAT(
        stream->kernel_set()->Description(),
        AllOf(HasSubstr("cuda 13."), HasSubstr("a fake GPU, capability 9.0"),
              HasSubstr("132 processors"), HasSubstr("cublasLt 13.1.0")));
    Fake().fail_next["cudaSetDevice"] = cudaErrorIllegalAddress;
    float x = 1;
    Scale(*stream, &x, 2.0f, 1);
    EXPECT_THAT(std::string((*device)->status().message()),
                HasSubstr("making the device current"));
  }
  ResetFake();
}

}  // namespace
}  // namespace holdfast::kernels

// MatmulCuda over a cuBLASLt of plain loops (fake_cublaslt.h): the right
// matrices, types, transposes and leading dimensions reach the library, choices
// are made once, and refusals become the device's error.

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda_device.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_matmul.h"
#include "tests/unit/kernels/cuda/fake_cublaslt.h"
#include "tests/unit/kernels/cuda/fake_cudart.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Case {
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  int64_t padding;
};

template <typename T, typename Out>
struct Operands {
  explicit Operands(const Case& c) {
    args.m = c.m;
    args.n = c.n;
    args.k = c.k;
    args.transpose_a = c.transpose_a;
    args.transpose_b = c.transpose_b;
    args.accumulate = c.accumulate;
    args.lda = (c.transpose_a ? c.m : c.k) + c.padding;
    args.ldb = (c.transpose_b ? c.k : c.n) + c.padding;
    args.ldc = c.n + c.padding;
    a = RandomValues<T>((c.transpose_a ? c.k : c.m) * args.lda, 1);
    b = RandomValues<T>((c.transpose_b ? c.n : c.k) * args.ldb, 2);
    out = RandomValues<Out>(c.m * args.ldc, 3);
    args.a = a.data();
    args.b = b.data();
    args.c = out.data();
  }

  std::vector<T> a, b;
  std::vector<Out> out;
  MatmulArgs<T, Out> args;
};

class MatmulCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeLt() = {};
    auto device = OpenCudaDevice(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    stream_ = device_->NewCudaStream(CudaPriority::kNormal);
  }
  void TearDown() override {
    stream_.reset();
    device_.reset();
    EXPECT_EQ(FakeLt().alive, 0);
    ResetFake();
  }

  // The processor's product of the same operands, but for rounding.
  template <typename T, typename Out>
  void ExpectAsOnTheProcessor(const Case& c) {
    Operands<T, Out> mine(c), expected(c);
    MatmulCuda(*stream_, mine.args);
    device_->Sync(*stream_);
    ASSERT_TRUE(device_->status().ok()) << device_->status();
    Matmul(CpuStream(), expected.args);
    for (size_t i = 0; i < mine.out.size(); ++i) {
      ASSERT_NEAR(ToFloat(mine.out[i]), ToFloat(expected.out[i]),
                  kRounding<Out> * 20)
          << i << " of m " << c.m << " n " << c.n << " k " << c.k << " ta "
          << c.transpose_a << " tb " << c.transpose_b << " padding "
          << c.padding;
    }
  }
  template <typename T, typename Out>
  void ExpectAllAsOnTheProcessor() {
    for (int bits = 0; bits < 8; ++bits) {
      const bool accumulate = std::is_same_v<Out, float> && (bits & 4) != 0;
      for (const int64_t padding : {0, 1, 6}) {
        ExpectAsOnTheProcessor<T, Out>(
            {9, 14, 11, (bits & 1) != 0, (bits & 2) != 0, accumulate, padding});
      }
      ExpectAsOnTheProcessor<T, Out>(
          {4, 3, 0, (bits & 1) != 0, (bits & 2) != 0, accumulate, 2});
      ExpectAsOnTheProcessor<T, Out>(
          {0, 3, 5, (bits & 1) != 0, (bits & 2) != 0, accumulate, 0});
      ExpectAsOnTheProcessor<T, Out>(
          {1, 1, 1, (bits & 1) != 0, (bits & 2) != 0, accumulate, 0});
    }
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CudaStream> stream_;
};

TEST_F(MatmulCudaTest, Floats) {
  ExpectAllAsOnTheProcessor<float, float>();
  EXPECT_EQ(FakeLt().compute, CUBLAS_COMPUTE_32F_PEDANTIC) << "no TF32";
}

TEST_F(MatmulCudaTest, Bf16ToBf16) {
  ExpectAllAsOnTheProcessor<Bf16, Bf16>();
  EXPECT_EQ(FakeLt().compute, CUBLAS_COMPUTE_32F);
}

TEST_F(MatmulCudaTest, Bf16ToFloat) {
  ExpectAllAsOnTheProcessor<Bf16, float>();
  EXPECT_EQ(FakeLt().compute, CUBLAS_COMPUTE_32F);
}

TEST_F(MatmulCudaTest, PartialSumsAreNeverRoundedOrAddedInTheOutput) {
  ExpectAsOnTheProcessor<Bf16, Bf16>({8, 8, 8, false, false, false, 0});
  EXPECT_EQ(FakeLt().reduction_mask,
            static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE |
                                  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  EXPECT_EQ(FakeLt().workspace, kCudaMatmulWorkspaceBytes);
}

TEST_F(MatmulCudaTest, AChoiceIsMadeOnceForEachShapeAndStream) {
  const Case shape = {8, 8, 8, false, true, false, 0};
  Operands<Bf16, Bf16> operands(shape);
  MatmulCuda(*stream_, operands.args);
  const int first = FakeLt().choices;
  for (int i = 0; i < 5; ++i) MatmulCuda(*stream_, operands.args);
  EXPECT_EQ(FakeLt().choices, first);
  EXPECT_EQ(FakeLt().launches, 6);
  operands.args.transpose_b = false;
  MatmulCuda(*stream_, operands.args);
  EXPECT_EQ(FakeLt().choices, first + 1);
  const auto other = device_->NewCudaStream(CudaPriority::kNormal);
  MatmulCuda(*other, operands.args);
  EXPECT_EQ(FakeLt().choices, first + 2);
  device_->Sync(*stream_);
  device_->Sync(*other);
}

TEST_F(MatmulCudaTest, AProductThatTheLibraryDoesNotKnowIsDescribed) {
  FakeLt().finds_nothing = true;
  Operands<Bf16, float> operands({6, 10, 3, true, false, true, 2});
  MatmulCuda(*stream_, operands.args);
  EXPECT_THAT(std::string(device_->status().message()),
              AllOf(HasSubstr("choosing an algorithm for the product [6, 3] x "
                              "[3, 10] (TN, ld 8, 12, 12)"),
                    HasSubstr("not supported")));
  EXPECT_EQ(FakeLt().launches, 0);
}

TEST_F(MatmulCudaTest, ALaunchThatFailsIsDescribed) {
  FakeLt().fail_launch = CUBLAS_STATUS_EXECUTION_FAILED;
  Operands<float, float> operands({2, 2, 2, false, false, false, 0});
  MatmulCuda(*stream_, operands.args);
  EXPECT_THAT(std::string(device_->status().message()),
              HasSubstr("launching the product [2, 2] x [2, 2]"));
}

TEST_F(MatmulCudaTest, WithoutMemoryForTheWorkspaceNothingIsLaunched) {
  Fake().fail_next["cudaMallocAsync"] = cudaErrorMemoryAllocation;
  stream_->set_last_operation("Matmul");
  Operands<float, float> operands({2, 2, 2, false, false, false, 0});
  MatmulCuda(*stream_, operands.args);
  EXPECT_THAT(std::string(device_->status().message()),
              HasSubstr("Matmul needs 33554432 bytes of scratch"));
  EXPECT_EQ(FakeLt().launches, 0);
}

TEST_F(MatmulCudaTest, TheDescriptionNamesTheLibrary) {
  EXPECT_EQ(CudaMatmulDescription(),
            "cublasLt 13.1.0, fp32 sums, split-K in fp32 or none, workspace 32 "
            "MiB");
}

}  // namespace
}  // namespace holdfast::kernels

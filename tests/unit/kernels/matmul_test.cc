// Products against plain loops in double, and against themselves at other
// thread counts. Sizes straddle the tile (256 x 384) and the K block (1024).

#include "kernels/matmul.h"

#include <cmath>
#include <limits>
#include <random>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/matmul_tile.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

template <typename InType, typename OutType>
struct Pair {
  using In = InType;
  using Out = OutType;
};

template <typename P>
class MatmulTest : public testing::Test {};
using Pairs =
    testing::Types<Pair<float, float>, Pair<Bf16, float>, Pair<Bf16, Bf16>>;
TYPED_TEST_SUITE(MatmulTest, Pairs);

struct Case {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  bool accumulate = false;
  int64_t pad_a = 0, pad_b = 0, pad_c = 0;  // Added to leading dimensions.
};

template <typename T, typename Out>
struct Operands {
  std::vector<T> a, b;
  std::vector<Out> c;
  MatmulArgs<T, Out> args;
};

template <typename T, typename Out>
Operands<T, Out> MakeOperands(const Case& c, uint64_t seed) {
  Operands<T, Out> o;
  MatmulArgs<T, Out>& args = o.args;
  args.m = c.m;
  args.n = c.n;
  args.k = c.k;
  args.transpose_a = c.transpose_a;
  args.transpose_b = c.transpose_b;
  args.accumulate = c.accumulate;
  args.lda = (c.transpose_a ? c.m : c.k) + c.pad_a;
  args.ldb = (c.transpose_b ? c.k : c.n) + c.pad_b;
  args.ldc = c.n + c.pad_c;
  o.a = RandomValues<T>((c.transpose_a ? c.k : c.m) * args.lda, seed);
  o.b = RandomValues<T>((c.transpose_b ? c.n : c.k) * args.ldb, seed + 1);
  o.c = RandomValues<Out>(c.m * args.ldc, seed + 2);
  args.a = o.a.data();
  args.b = o.b.data();
  args.c = o.c.data();
  return o;
}

// op(A)[i, p] and op(B)[p, j] in double.
template <typename T, typename Out>
double ElementOfA(const MatmulArgs<T, Out>& args, int64_t i, int64_t p) {
  return ToFloat(args.transpose_a ? args.a[p * args.lda + i]
                                  : args.a[i * args.lda + p]);
}
template <typename T, typename Out>
double ElementOfB(const MatmulArgs<T, Out>& args, int64_t p, int64_t j) {
  return ToFloat(args.transpose_b ? args.b[j * args.ldb + p]
                                  : args.b[p * args.ldb + j]);
}

// Compares every `row_step`-th row of C with plain loops, padding included
// (untouched).
template <typename T, typename Out>
void ExpectCorrect(const Operands<T, Out>& o, const std::vector<Out>& before,
                   int64_t row_step = 1) {
  const MatmulArgs<T, Out>& args = o.args;
  for (int64_t i = 0; i < args.m; i += row_step) {
    for (int64_t j = 0; j < args.ldc; ++j) {
      const int64_t at = i * args.ldc + j;
      const double old = ToFloat(before[at]);
      if (j >= args.n) {
        ASSERT_EQ(ToFloat(o.c[at]), old) << "padding of row " << i;
        continue;
      }
      double sum = args.accumulate ? old : 0.0;
      double size = std::abs(sum);
      for (int64_t p = 0; p < args.k; ++p) {
        const double term = ElementOfA(args, i, p) * ElementOfB(args, p, j);
        sum += term;
        size += std::abs(term);
      }
      const double bound = 1e-6 * size + 1.01 * kRounding<Out> * std::abs(sum);
      ASSERT_NEAR(ToFloat(o.c[at]), sum, bound + 1e-30)
          << "m " << args.m << " n " << args.n << " k " << args.k << " ta "
          << args.transpose_a << " tb " << args.transpose_b << " at " << i
          << ", " << j;
    }
  }
}

TYPED_TEST(MatmulTest, AgreesWithPlainLoopsOnRandomShapes) {
  using T = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  std::mt19937_64 random(7);
  const auto upto = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most + 1));
  };
  for (int i = 0; i < 150; ++i) {
    const Case c = {.m = upto(70),
                    .n = upto(70),
                    .k = upto(90),
                    .transpose_a = upto(1) == 1,
                    .transpose_b = upto(1) == 1,
                    .accumulate = std::is_same_v<Out, float> && upto(1) == 1,
                    .pad_a = upto(3),
                    .pad_b = upto(3),
                    .pad_c = upto(3)};
    auto o = MakeOperands<T, Out>(c, 100 + i);
    const std::vector<Out> before = o.c;
    Matmul(CpuStream(), o.args);
    ExpectCorrect(o, before);
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(MatmulTest, CrossesTilesAndKBlocks) {
  using T = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  for (int transposes = 0; transposes < 4; ++transposes) {
    const Case c = {.m = 259,
                    .n = 387,
                    .k = kMatmulKBlock + 33,
                    .transpose_a = (transposes & 1) != 0,
                    .transpose_b = (transposes & 2) != 0,
                    .accumulate = std::is_same_v<Out, float>,
                    .pad_c = 5};
    auto o = MakeOperands<T, Out>(c, 5);
    const std::vector<Out> before = o.c;
    Matmul(CpuStream(), o.args);
    ExpectCorrect(o, before, /*row_step=*/43);  // 258 is a row.
  }
}

TYPED_TEST(MatmulTest, ThreadCountNeverChangesABit) {
  using T = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  // Rows, columns and depths of real layers, and the edges around them.
  const int64_t shapes[][3] = {
      {256, 192, 768},  {64, 768, 3072}, {1, 768, 768},    {300, 1, 1024},
      {33, 129, 2048},  {7, 25152, 64},  {520, 400, 1025}, {96, 96, 4096},
      {128, 512, 1000}, {1, 1, 4096},
  };
  for (const auto& [m, n, k] : shapes) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      const Case c = {.m = m,
                      .n = n,
                      .k = k,
                      .transpose_a = (transposes & 1) != 0,
                      .transpose_b = (transposes & 2) != 0,
                      .accumulate = std::is_same_v<Out, float>};
      auto o = MakeOperands<T, Out>(c, 9);
      const std::vector<Out> before = o.c;
      SCOPED_TRACE(testing::Message()
                   << m << "x" << n << "x" << k << " " << transposes);
      ExpectSameBitsOnAnyThreadCount([&] {
        o.c = before;
        Matmul(CpuStream(), o.args);
        return o.c;
      });
    }
  }
}

// The order that the header states, spelled with whole calls.
TEST(MatmulOrderTest, IsTheSumOfItsKBlocksInOrder) {
  const int64_t k = 2 * kMatmulKBlock + 100;
  auto whole = MakeOperands<Bf16, float>(
      {.m = 40, .n = 50, .k = k, .transpose_a = false, .transpose_b = true}, 3);
  Matmul(CpuStream(), whole.args);

  std::vector<float> blocks(whole.c.size());
  MatmulArgs<Bf16, float> part = whole.args;
  part.c = blocks.data();
  for (int64_t at = 0; at < k; at += kMatmulKBlock) {
    part.a = whole.args.a + at;
    part.b = whole.args.b + at;
    part.k = std::min(kMatmulKBlock, k - at);
    part.accumulate = at > 0;
    Matmul(CpuStream(), part);
  }
  EXPECT_TRUE(SameBits(whole.c, blocks));
}

TEST(MatmulOrderTest, DoesNotDependOnWhereTheOperandsLie) {
  auto o = MakeOperands<Bf16, float>(
      {.m = 65, .n = 70, .k = 700, .transpose_a = true, .transpose_b = false},
      3);
  Matmul(CpuStream(), o.args);
  for (int64_t shift : {1, 3, 16}) {
    std::vector<Bf16> a(o.a.size() + shift), b(o.b.size() + shift);
    std::copy(o.a.begin(), o.a.end(), a.begin() + shift);
    std::copy(o.b.begin(), o.b.end(), b.begin() + shift);
    std::vector<float> c(o.c.size() + shift);
    MatmulArgs<Bf16, float> args = o.args;
    args.a = a.data() + shift;
    args.b = b.data() + shift;
    args.c = c.data() + shift;
    Matmul(CpuStream(), args);
    EXPECT_EQ(
        std::memcmp(o.c.data(), c.data() + shift, o.c.size() * sizeof(float)),
        0)
        << shift;
  }
}

TYPED_TEST(MatmulTest, ANanStaysInItsRowAndColumn) {
  using T = typename TypeParam::In;
  using Out = typename TypeParam::Out;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::mt19937_64 random(3);
  for (int i = 0; i < 60; ++i) {
    const Case c = {.m = static_cast<int64_t>(2 + random() % 60),
                    .n = static_cast<int64_t>(2 + random() % 60),
                    .k = static_cast<int64_t>(1 + random() % 140),
                    .transpose_a = random() % 2 == 0,
                    .transpose_b = random() % 2 == 0};
    auto o = MakeOperands<T, Out>(c, 50 + i);
    const int64_t row = random() % c.m;
    const int64_t column = random() % c.n;
    const int64_t at_a = random() % c.k;
    const int64_t at_b = random() % c.k;
    o.a[c.transpose_a ? at_a * o.args.lda + row : row * o.args.lda + at_a] =
        FromFloat<T>(nan);
    o.b[c.transpose_b ? column * o.args.ldb + at_b
                      : at_b * o.args.ldb + column] = FromFloat<T>(nan);
    // What C held before must not matter either.
    std::fill(o.c.begin(), o.c.end(), FromFloat<Out>(nan));
    Matmul(CpuStream(), o.args);
    for (int64_t r = 0; r < c.m; ++r) {
      for (int64_t s = 0; s < c.n; ++s) {
        ASSERT_EQ(std::isnan(ToFloat(o.c[r * o.args.ldc + s])),
                  r == row || s == column)
            << r << ", " << s << " with k " << c.k;
      }
    }
  }
}

TEST(MatmulPathTest, WideningToFloatAgreesWithPlainLoops) {
  for (int transposes = 0; transposes < 4; ++transposes) {
    auto o = MakeOperands<Bf16, Bf16>({.m = 61,
                                       .n = 47,
                                       .k = kMatmulKBlock + 70,
                                       .transpose_a = (transposes & 1) != 0,
                                       .transpose_b = (transposes & 2) != 0,
                                       .pad_a = 2,
                                       .pad_b = 1},
                                      77);
    const std::vector<Bf16> before = o.c;
    MatmulOnPath(CpuStream(), o.args, Bf16Path::kConverted);
    ExpectCorrect(o, before);
  }
}

TEST(MatmulPathTest, WideningToFloatIgnoresTheThreadCount) {
  auto o = MakeOperands<Bf16, float>({.m = 300,
                                      .n = 500,
                                      .k = 1100,
                                      .transpose_a = true,
                                      .transpose_b = false},
                                     78);
  ExpectSameBitsOnAnyThreadCount([&] {
    MatmulOnPath(CpuStream(), o.args, Bf16Path::kConverted);
    return o.c;
  });
}

TEST(MatmulDescriptionTest, NamesLibraryPathAndKBlock) {
  const std::string description = MatmulDescription();
  EXPECT_NE(description.find("onednn "), std::string::npos) << description;
  EXPECT_NE(description.find("bf16 "), std::string::npos) << description;
  EXPECT_NE(description.find(absl::StrCat("k block ", kMatmulKBlock)),
            std::string::npos)
      << description;
}

TEST(MatmulScratchTest, StandsOnceTheShapesAreKnown) {
  auto o = MakeOperands<Bf16, Bf16>(
      {.m = 300, .n = 400, .k = 600, .transpose_a = false, .transpose_b = true},
      1);
  Matmul(CpuStream(), o.args);
  const size_t bytes = MatmulScratchBytes();
  EXPECT_GT(bytes, 0u);
  for (int i = 0; i < 3; ++i) Matmul(CpuStream(), o.args);
  EXPECT_EQ(MatmulScratchBytes(), bytes);
}

}  // namespace
}  // namespace holdfast::kernels

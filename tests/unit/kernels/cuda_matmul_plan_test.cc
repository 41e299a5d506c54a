// The mapping of row-major products to a column-major library, run over a naive
// column-major product.

#include "kernels/cuda_matmul_plan.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace holdfast::kernels {
namespace {

// What a column-major library does with a plan.
void ColumnMajorProduct(const CudaMatmulPlan& plan, const float* x,
                        const float* y, float* d) {
  const auto at = [](const ColumnMajor& matrix, bool transpose, int64_t row,
                     int64_t column) {
    if (transpose) std::swap(row, column);
    EXPECT_LT(row, matrix.rows);
    EXPECT_LT(column, matrix.columns);
    return row + column * matrix.ld;
  };
  const int64_t k = plan.transpose_x ? plan.x.rows : plan.x.columns;
  ASSERT_EQ(k, plan.transpose_y ? plan.y.columns : plan.y.rows);
  for (int64_t column = 0; column < plan.d.columns; ++column) {
    for (int64_t row = 0; row < plan.d.rows; ++row) {
      float sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        sum += x[at(plan.x, plan.transpose_x, row, i)] *
               y[at(plan.y, plan.transpose_y, i, column)];
      }
      float& to = d[row + column * plan.d.ld];
      to = plan.accumulate ? to + sum : sum;
    }
  }
}

struct Case {
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  int64_t padding;  // of every leading dimension
};

class CudaMatmulPlanTest : public ::testing::TestWithParam<Case> {};

TEST_P(CudaMatmulPlanTest, GivesTheRowMajorProduct) {
  const Case& c = GetParam();
  const int64_t lda = (c.transpose_a ? c.m : c.k) + c.padding;
  const int64_t ldb = (c.transpose_b ? c.k : c.n) + c.padding;
  const int64_t ldc = c.n + c.padding;
  std::mt19937 random(7);
  std::uniform_int_distribution<int> small(-8, 8);  // sums are exact
  const auto fill = [&](int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(small(random));
    return values;
  };
  const auto a = fill((c.transpose_a ? c.k : c.m) * lda);
  const auto b = fill((c.transpose_b ? c.n : c.k) * ldb);
  auto out = fill(c.m * ldc);
  auto expected = out;
  MatmulArgs<float, float> args;
  args.a = a.data();
  args.lda = lda;
  args.transpose_a = c.transpose_a;
  args.b = b.data();
  args.ldb = ldb;
  args.transpose_b = c.transpose_b;
  args.c = out.data();
  args.ldc = ldc;
  args.m = c.m;
  args.n = c.n;
  args.k = c.k;
  args.accumulate = c.accumulate;
  for (int64_t row = 0; row < c.m; ++row) {
    for (int64_t column = 0; column < c.n; ++column) {
      float sum = 0;
      for (int64_t i = 0; i < c.k; ++i) {
        sum += a[static_cast<size_t>(c.transpose_a ? i * lda + row
                                                   : row * lda + i)] *
               b[static_cast<size_t>(c.transpose_b ? column * ldb + i
                                                   : i * ldb + column)];
      }
      float& to = expected[static_cast<size_t>(row * ldc + column)];
      to = c.accumulate ? to + sum : sum;
    }
  }
  ColumnMajorProduct(PlanCudaMatmul(args), args.b, args.a, args.c);
  EXPECT_EQ(out, expected);  // padding included
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int bits = 0; bits < 8; ++bits) {
    for (const int64_t padding : {0, 3}) {
      cases.push_back({5, 7, 4, (bits & 1) != 0, (bits & 2) != 0,
                       (bits & 4) != 0, padding});
    }
  }
  cases.push_back({1, 1, 1, true, false, false, 0});
  cases.push_back({1, 9, 3, false, true, true, 1});
  cases.push_back({9, 1, 3, true, true, false, 2});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaMatmulPlanTest,
                         ::testing::ValuesIn(Cases()));

TEST(CudaMatmulKeyTest, LeadingDimensionsAreAtLeastTheRows) {
  for (const Case& c : Cases()) {
    MatmulArgs<Bf16, float> args;
    args.lda = (c.transpose_a ? c.m : c.k) + c.padding;
    args.ldb = (c.transpose_b ? c.k : c.n) + c.padding;
    args.ldc = c.n + c.padding;
    args.transpose_a = c.transpose_a;
    args.transpose_b = c.transpose_b;
    args.m = c.m;
    args.n = c.n;
    args.k = c.k;
    const CudaMatmulPlan plan = PlanCudaMatmul(args);
    EXPECT_EQ(plan.types, MatmulTypes::kBf16ToFloat);
    for (const ColumnMajor& matrix : {plan.x, plan.y, plan.d}) {
      EXPECT_GE(matrix.ld, matrix.rows);
    }
  }
}

TEST(CudaMatmulKeyTest, AlignmentIsThatOfTheAddressUpTo256) {
  const auto of = [](uintptr_t address) {
    return AlignmentOf(reinterpret_cast<const void*>(address));
  };
  EXPECT_EQ(of(0x10000), 256);
  EXPECT_EQ(of(0x10100), 256);
  EXPECT_EQ(of(0x10080), 128);
  EXPECT_EQ(of(0x10010), 16);
  EXPECT_EQ(of(0x10012), 2);
  EXPECT_EQ(of(0x10001), 1);
}

TEST(CudaMatmulKeyTest, PlansThatDifferInAnythingAreDifferentKeys) {
  MatmulArgs<Bf16, Bf16> args;
  args.lda = args.ldb = args.ldc = 64;
  args.m = args.n = args.k = 32;
  const CudaMatmulPlan plan = PlanCudaMatmul(args);
  EXPECT_EQ(plan, PlanCudaMatmul(args));
  EXPECT_EQ(CudaMatmulPlanHash()(plan),
            CudaMatmulPlanHash()(PlanCudaMatmul(args)));
  auto other = args;
  other.transpose_a = true;
  EXPECT_NE(plan, PlanCudaMatmul(other));
  other = args;
  other.lda = 65;
  EXPECT_NE(plan, PlanCudaMatmul(other));
  other = args;
  other.c = reinterpret_cast<Bf16*>(16);
  EXPECT_NE(plan, PlanCudaMatmul(other));
}

}  // namespace
}  // namespace holdfast::kernels

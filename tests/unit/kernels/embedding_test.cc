// Gathering rows of a vocabulary range, and the order of the scattered
// gradient.

#include "kernels/embedding.h"

#include "gtest/gtest.h"
#include "kernels/elementwise.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class EmbeddingTest : public testing::Test {};
TYPED_TEST_SUITE(EmbeddingTest, ComputeTypes);

constexpr int64_t kVocab = 12;
constexpr int64_t kHidden = 200;  // More than one range of columns.
const std::vector<int32_t> kTokens = {3, 11, 0, 3, 7, 3, 8};

template <typename T>
std::vector<T> Gather(const std::vector<T>& table, int64_t begin,
                      int64_t rows) {
  std::vector<T> out(kTokens.size() * kHidden, FromFloat<T>(9.0f));
  EmbeddingForward(
      CpuStream(),
      EmbeddingArgs<T>{.tokens = kTokens.data(),
                       .count = static_cast<int64_t>(kTokens.size()),
                       .table = table.data() + begin * kHidden,
                       .vocab_begin = begin,
                       .vocab_rows = rows,
                       .hidden = kHidden,
                       .out = out.data()});
  return out;
}

TYPED_TEST(EmbeddingTest, GathersRowsAndZerosOutsideItsRange) {
  const auto table = RandomValues<TypeParam>(kVocab * kHidden, 1);
  const auto out = Gather(table, 3, 5);  // Tokens 3 to 7.
  for (size_t i = 0; i < kTokens.size(); ++i) {
    for (int64_t c = 0; c < kHidden; ++c) {
      const bool here = kTokens[i] >= 3 && kTokens[i] < 8;
      const float expected =
          here ? ToFloat(table[kTokens[i] * kHidden + c]) : 0.0f;
      ASSERT_EQ(ToFloat(out[i * kHidden + c]), expected) << i << ", " << c;
    }
  }
}

TYPED_TEST(EmbeddingTest, TheSumOverRangesIsTheUndividedAnswer) {
  const auto table = RandomValues<TypeParam>(kVocab * kHidden, 1);
  auto sum = Gather(table, 0, 5);
  const auto rest = Gather(table, 5, 7);
  Add(CpuStream(), sum.data(), rest.data(), sum.data(), sum.size());
  EXPECT_TRUE(SameBits(sum, Gather(table, 0, kVocab)));
}

template <typename T>
std::vector<float> Scatter(const std::vector<T>& dout, int64_t begin,
                           int64_t rows) {
  std::vector<float> dtable(rows * kHidden, 1.0f);
  EmbeddingBackward(
      CpuStream(),
      EmbeddingBackwardArgs<T>{.tokens = kTokens.data(),
                               .count = static_cast<int64_t>(kTokens.size()),
                               .dout = dout.data(),
                               .vocab_begin = begin,
                               .vocab_rows = rows,
                               .hidden = kHidden,
                               .dtable = dtable.data()});
  return dtable;
}

TYPED_TEST(EmbeddingTest, GradientAddsTokensInTheirOrder) {
  const auto dout = RandomValues<TypeParam>(kTokens.size() * kHidden, 2);
  std::vector<float> expected(5 * kHidden, 1.0f);
  for (size_t i = 0; i < kTokens.size(); ++i) {
    if (kTokens[i] < 3 || kTokens[i] >= 8) continue;
    for (int64_t c = 0; c < kHidden; ++c) {
      expected[(kTokens[i] - 3) * kHidden + c] +=
          ToFloat(dout[i * kHidden + c]);
    }
  }
  EXPECT_TRUE(SameBits(Scatter(dout, 3, 5), expected));
}

TYPED_TEST(EmbeddingTest, ThreadCountNeverChangesABit) {
  const auto dout = RandomValues<TypeParam>(kTokens.size() * kHidden, 2);
  ExpectSameBitsOnAnyThreadCount([&] { return Scatter(dout, 0, kVocab); });
}

}  // namespace
}  // namespace holdfast::kernels

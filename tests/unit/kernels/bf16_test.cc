// Rounding to bfloat16: nearest, ties to even, infinities, NaN.

#include "kernels/bf16.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace holdfast::kernels {
namespace {

TEST(Bf16Test, EveryValueSurvivesTheWayToFloatAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 value{static_cast<uint16_t>(bits)};
    const float wide = ToFloat(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(ToFloat(RoundToBf16(wide))));
    } else {
      ASSERT_EQ(RoundToBf16(wide).bits, bits);
    }
  }
}

TEST(Bf16Test, RoundsToTheNearestAndTiesToEven) {
  const float ulp = 1.0f / 128;  // Of 1.0: seven fraction bits.
  EXPECT_EQ(ToFloat(RoundToBf16(1.0f + 0.49f * ulp)), 1.0f);
  EXPECT_EQ(ToFloat(RoundToBf16(1.0f + 0.51f * ulp)), 1.0f + ulp);
  EXPECT_EQ(ToFloat(RoundToBf16(1.0f + 0.5f * ulp)), 1.0f);
  EXPECT_EQ(ToFloat(RoundToBf16(1.0f + 1.5f * ulp)), 1.0f + 2 * ulp);
  EXPECT_EQ(ToFloat(RoundToBf16(-1.0f - 0.5f * ulp)), -1.0f);
}

TEST(Bf16Test, OverflowIsInfinityAndNanStaysNan) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ToFloat(RoundToBf16(std::numeric_limits<float>::max())), inf);
  EXPECT_EQ(ToFloat(RoundToBf16(-inf)), -inf);
  // The low bits alone make it a NaN; cutting them off must not.
  const float low_nan = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(ToFloat(RoundToBf16(low_nan))));
  const float negative_nan = std::bit_cast<float>(0xffffffffu);
  EXPECT_TRUE(std::isnan(ToFloat(RoundToBf16(negative_nan))));
  EXPECT_TRUE(std::signbit(ToFloat(RoundToBf16(negative_nan))));
}

}  // namespace
}  // namespace holdfast::kernels

// Casts against the definition: the nearest value that the narrow type has, of
// two equally near ones the even one.

#include "tools/convert/cast.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/bf16.h"

namespace holdfast::tools {
namespace {

using ckpt::DType;

template <typename To, typename From>
To CastOne(DType from, From value, DType to, int64_t* infinite = nullptr) {
  To out{};
  const int64_t count =
      CastElements(from, std::as_bytes(std::span<From>(&value, 1)), to,
                   std::as_writable_bytes(std::span<To>(&out, 1)));
  if (infinite != nullptr) *infinite = count;
  return out;
}

TEST(CastTest, EveryF16ComesBackFromF32) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = F32FromF16(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(F32FromF16(F16FromF32(wide))));
      EXPECT_EQ(std::signbit(wide), (bits & 0x8000) != 0);
    } else {
      ASSERT_EQ(F16FromF32(wide), half) << bits;
    }
  }
}

TEST(CastTest, F16IsTheNearestOfItsNeighboursAndTheEvenOneOfTwo) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto low = static_cast<uint16_t>(bits);
    const auto high = static_cast<uint16_t>(bits + 1);
    const double below = F32FromF16(low);
    // Above the largest finite value stands, for rounding, 65,536.
    const double above = bits == 0x7bff ? 65536.0 : F32FromF16(high);
    const auto middle = static_cast<float>((below + above) / 2);
    ASSERT_EQ(F16FromF32(middle), bits % 2 == 0 ? low : high) << bits;
    ASSERT_EQ(F16FromF32(std::nextafter(middle, 0.0f)), low) << bits;
    ASSERT_EQ(F16FromF32(std::nextafter(middle, 1e9f)), high) << bits;
    ASSERT_EQ(F16FromF32(-std::nextafter(middle, 0.0f)), low | 0x8000) << bits;
  }
}

TEST(CastTest, Bf16TiesGoToTheEvenOne) {
  EXPECT_EQ((CastOne<uint16_t>(DType::kF32, std::bit_cast<float>(0x3f808000u),
                               DType::kBf16)),
            0x3f80);
  EXPECT_EQ((CastOne<uint16_t>(DType::kF32, std::bit_cast<float>(0x3f818000u),
                               DType::kBf16)),
            0x3f82);
  EXPECT_EQ((CastOne<uint16_t>(DType::kF32, std::bit_cast<float>(0x3f808001u),
                               DType::kBf16)),
            0x3f81);
}

TEST(CastTest, F64IsRoundedOnceOnTheWayToBf16) {
  // 1 + 2^-8 + 2^-40: nearest in FP32 is the tie 1 + 2^-8, which would go to 1.
  const double value = 1.0 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ((CastOne<uint16_t>(DType::kF64, value, DType::kBf16)), 0x3f81);
  EXPECT_EQ((CastOne<uint16_t>(DType::kF64, -value, DType::kBf16)), 0xbf81);
  const double below = 1.0 + 0x1p-8 - 0x1p-40;
  EXPECT_EQ((CastOne<uint16_t>(DType::kF64, below, DType::kBf16)), 0x3f80);
  EXPECT_EQ((CastOne<uint16_t>(DType::kF64, 1.0 + 0x1p-8, DType::kBf16)),
            0x3f80);
}

TEST(CastTest, CountsFiniteValuesThatBecomeInfiniteAndKeepsNan) {
  int64_t infinite = -1;
  EXPECT_EQ((CastOne<uint16_t>(DType::kF32, 65519.0f, DType::kF16, &infinite)),
            0x7bff);
  EXPECT_EQ(infinite, 0);
  EXPECT_EQ((CastOne<uint16_t>(DType::kF32, 65520.0f, DType::kF16, &infinite)),
            0x7c00);
  EXPECT_EQ(infinite, 1);
  EXPECT_EQ((CastOne<float>(DType::kF64, 1e300, DType::kF32, &infinite)),
            std::numeric_limits<float>::infinity());
  EXPECT_EQ(infinite, 1);
  CastOne<uint16_t>(DType::kF64, 1e300, DType::kBf16, &infinite);
  EXPECT_EQ(infinite, 1);
  const float infinity = std::numeric_limits<float>::infinity();
  CastOne<uint16_t>(DType::kF32, infinity, DType::kF16, &infinite);
  EXPECT_EQ(infinite, 0);
  const float nan = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(
      std::isnan(F32FromF16(CastOne<uint16_t>(DType::kF32, nan, DType::kF16))));
  EXPECT_TRUE(std::isnan(kernels::ToFloat(
      kernels::Bf16{CastOne<uint16_t>(DType::kF32, nan, DType::kBf16)})));
}

TEST(CastTest, TakesMemoryOfAnyAlignment) {
  std::vector<std::byte> in(4 * 5 + 1), out(2 * 5 + 1);
  for (int i = 0; i < 5; ++i) {
    const float value = static_cast<float>(i) + 0.5f;
    std::memcpy(in.data() + 1 + 4 * i, &value, 4);
  }
  EXPECT_EQ(CastElements(DType::kF32, std::span(in).subspan(1), DType::kF16,
                         std::span(out).subspan(1)),
            0);
  for (int i = 0; i < 5; ++i) {
    uint16_t half;
    std::memcpy(&half, out.data() + 1 + 2 * i, 2);
    EXPECT_EQ(F32FromF16(half), static_cast<float>(i) + 0.5f);
  }
}

TEST(CastTest, IntegersAreCopiedAndNeverConverted) {
  EXPECT_TRUE(CanCast(DType::kI64, DType::kI64));
  EXPECT_FALSE(CanCast(DType::kI64, DType::kF32));
  EXPECT_FALSE(CanCast(DType::kF32, DType::kF64));
  EXPECT_TRUE(CanCast(DType::kF64, DType::kF16));
}

}  // namespace
}  // namespace holdfast::tools

// CRC32C against its published check value, and in pieces.

#include "ckpt/format/checksum.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(ChecksumTest, GivesTheCheckValueOfTheCatalogue) {
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32Zip(Bytes("123456789")), 0xcbf43926u);
  EXPECT_EQ(Crc32Zip(Bytes("6789"), Crc32Zip(Bytes("12345"))), 0xcbf43926u);
}

TEST(ChecksumTest, GivesTheValuesOfTheIscsiStandard) {
  // RFC 3720, B.4: 32 bytes of zeros, of ones, counting up, counting down.
  std::vector<std::byte> bytes(32);
  EXPECT_EQ(Crc32c(bytes), 0x8a9136aau);
  std::fill(bytes.begin(), bytes.end(), std::byte{0xff});
  EXPECT_EQ(Crc32c(bytes), 0x62a8ab43u);
  for (int i = 0; i < 32; ++i) bytes[i] = std::byte(i);
  EXPECT_EQ(Crc32c(bytes), 0x46dd794eu);
  std::reverse(bytes.begin(), bytes.end());
  EXPECT_EQ(Crc32c(bytes), 0x113fdb5cu);
}

TEST(ChecksumTest, GoesOnFromTheChecksumOfWhatCameBefore) {
  std::vector<std::byte> bytes(5000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(i * 37 >> 3);
  const std::span<const std::byte> all = bytes;
  for (const size_t cut : {0, 1, 63, 64, 2048, 4999, 5000}) {
    EXPECT_EQ(Crc32c(all.subspan(cut), Crc32c(all.first(cut))), Crc32c(all));
  }
  EXPECT_EQ(Crc32c({}), 0u);
}

}  // namespace
}  // namespace holdfast::ckpt

// tests/unit/ckpt/base/aligned_buffer_test.cc: where memory begins, what is in
// it, and that it goes back whole.

#include "ckpt/base/aligned_buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <vector>

namespace holdfast::ckpt {
namespace {

// Pages of [begin, begin + size) that are mapped, by mincore(2).
size_t PagesMapped(const std::byte* begin, size_t size) {
  size_t mapped = 0;
  for (size_t at = 0; at < size; at += AlignedBuffer::kAlignment) {
    unsigned char there = 0;
    auto* const page = const_cast<std::byte*>(begin + at);
    mapped += ::mincore(page, 1, &there) == 0 || errno != ENOMEM;
  }
  return mapped;
}

TEST(AlignedBufferTest, ItBeginsOnABlockAndALargeOneOnAHugePage) {
  for (const size_t size : {size_t{1}, size_t{4096}, kHugePage - 1, kHugePage,
                            kHugePage + 1, 5 * kHugePage + 4097}) {
    AlignedBuffer buffer(size);
    const auto at = reinterpret_cast<uintptr_t>(buffer.data());
    const size_t alignment =
        RoundUp(size, AlignedBuffer::kAlignment) >= kHugePage ? kHugePage
                                                              : 4096;
    EXPECT_EQ(at % alignment, 0u) << size << " bytes";
    EXPECT_EQ(buffer.size(), size);
    for (const std::byte byte : buffer.span()) ASSERT_EQ(byte, std::byte{0});
    // The last block may be written whole.
    buffer.data()[RoundUp(size, AlignedBuffer::kAlignment) - 1] = std::byte{1};
  }
}

TEST(AlignedBufferTest, ALargeOneTakesNoMoreThanItsOwnPagesAndGivesThemBack) {
  constexpr size_t kSize = 3 * kHugePage + 4096;
  const std::byte* begin = nullptr;
  {
    AlignedBuffer buffer(kSize);
    begin = buffer.data();
    EXPECT_EQ(PagesMapped(begin, kSize), kSize / 4096);
  }
  EXPECT_EQ(PagesMapped(begin, kSize), 0u);
}

}  // namespace
}  // namespace holdfast::ckpt

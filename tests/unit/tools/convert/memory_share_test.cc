// How many threads a limit allows.

#include "tools/convert/memory_share.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::tools {
namespace {

using ::testing::HasSubstr;
constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(MemoryShareTest, ThreadsAreThoseThatFitAndNotMoreThanTheWork) {
  MemoryWish wish;
  wish.thread_bytes = 32 * kMiB;
  wish.processors = 2;
  const auto share = ShareMemory(wish);
  ASSERT_TRUE(share.ok());
  EXPECT_EQ(share->threads, 4);
  EXPECT_EQ(share->source.readers, 4);
  wish.processors = 64;
  wish.threads = 30;
  for (const uint64_t limit : {100 * kMiB, 256 * kMiB, 1024 * kMiB}) {
    wish.limit = limit;
    const auto smaller = ShareMemory(wish);
    ASSERT_TRUE(smaller.ok());
    EXPECT_LE(smaller->bytes_planned, limit);
    EXPECT_GE(smaller->threads, 1);
    EXPECT_LT(smaller->threads, 30);
  }
  wish.limit = uint64_t{1} << 40;
  EXPECT_EQ(ShareMemory(wish)->threads, 30);
}

TEST(MemoryShareTest, TooLittleIsRefusedAndSaysWhatWouldDo) {
  MemoryWish wish;
  wish.thread_bytes = 32 * kMiB;
  wish.limit = 16 * kMiB;
  const auto share = ShareMemory(wish);
  EXPECT_EQ(share.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(share.status().message(), HasSubstr("one thread needs 78.6 MB"));
}

}  // namespace
}  // namespace holdfast::tools

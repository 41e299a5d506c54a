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

TEST(MemoryShareTest, WhatTheSourceTakesIsNotThereForThreads) {
  MemoryWish wish;
  wish.reads_checkpoint = false;
  wish.limit = 128 * kMiB;
  wish.threads = 64;
  wish.thread_bytes = 16 * kMiB;
  EXPECT_EQ(ShareMemory(wish)->threads, 6);
  wish.source_bytes = 40 * kMiB;
  EXPECT_EQ(ShareMemory(wish)->threads, 4);
  wish.source_bytes = 100 * kMiB;
  const auto share = ShareMemory(wish);
  EXPECT_EQ(share.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(share.status().message(), HasSubstr("one thread needs 147 MB"));
  EXPECT_THAT(share.status().message(), HasSubstr("source's metadata"));
}

TEST(MemoryShareTest, MetadataThatDoNotFitAreRefusedWithTheLimitThatWouldDo) {
  const uint64_t max = MemoryToOpen(64 * kMiB);
  EXPECT_EQ(max, 40 * kMiB);
  EXPECT_EQ(MemoryToOpen(kMiB), 0u);
  EXPECT_TRUE(CheckMetadataFits("x", max, max).ok());
  const absl::Status status = CheckMetadataFits("a/.metadata", max + 1, max);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("a/.metadata: reading it may take"));
  EXPECT_THAT(status.message(), HasSubstr("67.1 MB would do"));
}

}  // namespace
}  // namespace holdfast::tools

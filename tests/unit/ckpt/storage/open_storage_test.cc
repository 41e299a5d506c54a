// tests/unit/ckpt/storage/open_storage_test.cc: from a location to a backend.

#include "ckpt/storage/open_storage.h"

#include <cstdlib>
#include <string>

#include "ckpt/storage/blocking.h"
#include "ckpt/storage/storage_probe.h"
#include "ckpt/storage/uring_storage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;

TEST(PathOfLocationTest, PathsAndFileUrls) {
  EXPECT_EQ(*PathOfLocation("/a/b"), "/a/b");
  EXPECT_EQ(*PathOfLocation("runs/x"), "runs/x");
  EXPECT_EQ(*PathOfLocation("./s3:x"), "./s3:x");
  EXPECT_EQ(*PathOfLocation("file:/a/b"), "/a/b");
  EXPECT_EQ(*PathOfLocation("file:a"), "a");
  EXPECT_EQ(*PathOfLocation("file:///a/b"), "/a/b");
  EXPECT_EQ(*PathOfLocation("file://localhost/a/b"), "/a/b");
}

TEST(PathOfLocationTest, OtherSchemesAreRefusedByName) {
  for (const char* const location : {"s3://bucket/run", "gs://b/x", "nfs:x"}) {
    const auto path = PathOfLocation(location);
    EXPECT_EQ(path.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string scheme =
        std::string(location).substr(0, std::string(location).find(':'));
    EXPECT_THAT(std::string(path.status().message()),
                HasSubstr("found the scheme '" + scheme + "'"));
  }
  EXPECT_FALSE(PathOfLocation("").ok());
  EXPECT_FALSE(PathOfLocation("file:").ok());
  EXPECT_FALSE(PathOfLocation("file://elsewhere").ok());
}

TEST(OpenStorageTest, BackendNamesAreThree) {
  EXPECT_EQ(*ParseStorageBackend("auto"), StorageBackend::kAuto);
  EXPECT_EQ(*ParseStorageBackend("posix"), StorageBackend::kPosix);
  EXPECT_EQ(*ParseStorageBackend("io_uring"), StorageBackend::kUring);
  EXPECT_THAT(std::string(ParseStorageBackend("aio").status().message()),
              HasSubstr("expected auto, posix or io_uring"));
}

TEST(OpenStorageTest, TakesTheBestThatTheProbeFinds) {
  const tests::TempDir dir;
  const auto probe = ProbeStorage(dir.path());
  ASSERT_TRUE(probe.ok()) << probe.status();
  const auto storage = OpenStorage({.location = dir.path(), .fault = ""});
  ASSERT_TRUE(storage.ok()) << storage.status();
  EXPECT_EQ((*storage)->traits().name,
            probe->io_uring.ok() ? "io_uring" : "posix");
  EXPECT_EQ((*storage)->traits().direct_io,
            probe->io_uring.ok() && probe->direct_io.ok());
}

TEST(OpenStorageTest, ForcesWhatIsAsked) {
  const tests::TempDir dir;
  const auto posix = OpenStorage({.location = "file:" + dir.path(),
                                  .backend = StorageBackend::kPosix,
                                  .queue_depth = 7,
                                  .fault = ""});
  ASSERT_TRUE(posix.ok()) << posix.status();
  EXPECT_EQ((*posix)->traits().name, "posix");
  EXPECT_EQ((*posix)->queue_depth(), 7);
  if (!ProbeUring().ok()) GTEST_SKIP() << ProbeUring();
  const auto buffered =
      OpenStorage({.location = dir.path(), .direct_io = false, .fault = ""});
  ASSERT_TRUE(buffered.ok()) << buffered.status();
  EXPECT_EQ((*buffered)->traits().name, "io_uring");
  EXPECT_FALSE((*buffered)->traits().direct_io);
}

TEST(OpenStorageTest, WhatIsNoDirectoryIsRefused) {
  const tests::TempDir dir;
  for (const StorageBackend backend :
       {StorageBackend::kAuto, StorageBackend::kPosix}) {
    const auto absent = OpenStorage(
        {.location = dir.path() + "/absent", .backend = backend, .fault = ""});
    EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(absent.status().message()), HasSubstr("/absent"));
    const auto file = OpenStorage(
        {.location = "/proc/version", .backend = backend, .fault = ""});
    EXPECT_EQ(file.status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(OpenStorageTest, TakesFaultsFromOptionOrEnvironment) {
  const tests::TempDir dir;
  const auto malformed = OpenStorage({.location = dir.path(), .fault = "x"});
  EXPECT_EQ(malformed.status().code(), absl::StatusCode::kInvalidArgument);

  ::setenv("HOLDFAST_FAULT", "rank=3,op=put,do=fail", 1);
  const auto other = OpenStorage({.location = dir.path(), .rank = 2});
  const auto hit = OpenStorage({.location = dir.path(), .rank = 3});
  const auto overruled =
      OpenStorage({.location = dir.path(), .fault = "", .rank = 3});
  ::unsetenv("HOLDFAST_FAULT");
  ASSERT_TRUE(other.ok() && hit.ok() && overruled.ok());
  EXPECT_TRUE(Blocking(**other).PutIfAbsent("a", {}).ok());
  EXPECT_EQ(Blocking(**hit).PutIfAbsent("b", {}).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Blocking(**overruled).PutIfAbsent("c", {}).ok());
}

TEST(StorageProbeTest, LeavesNothingBehind) {
  const tests::TempDir dir;
  const auto probe = ProbeStorage(dir.path());
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_TRUE(probe->exclusive_create.ok()) << probe->exclusive_create;
  EXPECT_TRUE(probe->directory_sync.ok()) << probe->directory_sync;
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  EXPECT_EQ(ProbeStorage(dir.path() + "/absent").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace holdfast::ckpt

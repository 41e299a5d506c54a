// What a path lies on.

#include "ckpt/storage/file_system.h"

#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

TEST(FileSystemTest, HasATypeAndSpace) {
  const tests::TempDir dir;
  const auto info = LookAtFileSystem(dir.path());
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_FALSE(info->type.empty());
  EXPECT_GT(info->bytes_total, 0);
  EXPECT_LE(info->bytes_free, info->bytes_total);
}

TEST(FileSystemTest, MemoryIsNamed) {
  const auto info = LookAtFileSystem("/dev/shm");
  if (!info.ok() || info->type != "tmpfs") {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  EXPECT_TRUE(info->in_memory);
  EXPECT_FALSE(info->network);
}

TEST(FileSystemTest, SaysWhatIsNotThere) {
  EXPECT_EQ(LookAtFileSystem("/no/such/place").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace holdfast::ckpt

// tests/unit/ckpt/storage/posix_tree_test.cc: names on a real directory, where
// the contract suite cannot reach: special files, links on the way, and file
// systems without an exclusive rename.

#include "ckpt/storage/posix_tree.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;

class PosixTreeTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const {
    return dir_.path() + "/" + name;
  }
  static std::span<const std::byte> Bytes(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
  }
  std::string Text(PosixTree& tree, const std::string& name) {
    std::vector<std::byte> bytes;
    const absl::Status status = tree.Get(name, 1000, &bytes);
    if (!status.ok()) return status.ToString();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  tests::TempDir dir_;
};

TEST_F(PosixTreeTest, PipesAndSocketsAreRefusedWithoutWaiting) {
  PosixTree tree = *PosixTree::Open(dir_.path());
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {AF_UNIX, ""};
  std::strncpy(address.sun_path, Path("socket").c_str(),
               sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  ::close(fd);
  for (const char* const name : {"pipe", "socket"}) {
    const auto opened = tree.OpenFile(name, 0);
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(opened.status().message()),
                HasSubstr("expected a regular file"));
  }
}

TEST_F(PosixTreeTest, DirectoriesOnTheWayMayBeLinks) {
  PosixTree tree = *PosixTree::Open(dir_.path());
  ASSERT_TRUE(tree.MakeDir("real").ok());
  ASSERT_EQ(::symlink("real", Path("link").c_str()), 0);
  ASSERT_TRUE(tree.PutIfAbsent("link/f", Bytes("x")).ok());
  EXPECT_EQ(Text(tree, "real/f"), "x");
  EXPECT_TRUE(tree.SyncDir("link").ok());
}

TEST_F(PosixTreeTest, TheRootMayBeRenamedWhileItIsInUse) {
  std::filesystem::create_directory(Path("before"));
  PosixTree tree = *PosixTree::Open(Path("before"));
  std::filesystem::rename(Path("before"), Path("after"));
  ASSERT_TRUE(tree.PutIfAbsent("f", Bytes("x")).ok());
  EXPECT_TRUE(std::filesystem::exists(Path("after/f")));
}

TEST_F(PosixTreeTest, WithoutAnExclusiveRenameNothingIsReplacedEither) {
  PosixTree tree = *PosixTree::Open(dir_.path(), /*exclusive_rename=*/false);
  ASSERT_TRUE(tree.MakeDir("d").ok());
  ASSERT_TRUE(tree.MakeDir("empty").ok());
  ASSERT_TRUE(tree.PutIfAbsent("a", Bytes("a")).ok());
  ASSERT_TRUE(tree.PutIfAbsent("b", Bytes("b")).ok());
  EXPECT_EQ(tree.Rename("a", "b").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(tree.Rename("d", "empty").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(tree.Rename("absent", "c").code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(tree.Rename("a", "d/a").ok());
  EXPECT_TRUE(tree.Rename("d", "e").ok());
  EXPECT_EQ(Text(tree, "e/a"), "a");
  EXPECT_EQ(Text(tree, "b"), "b");
  EXPECT_FALSE(std::filesystem::exists(Path("a")));
}

TEST_F(PosixTreeTest, ErrorsSayWhatWasDoneToWhat) {
  PosixTree tree = *PosixTree::Open(dir_.path());
  EXPECT_EQ(tree.MakeDir("no/dir").message(),
            "make directory " + Path("no/dir") +
                ": No such file or directory (ENOENT)");
  EXPECT_EQ(tree.Rename("a", "b").message(),
            "rename " + Path("a") + " to " + Path("b") +
                ": No such file or directory (ENOENT)");
}

TEST_F(PosixTreeTest, ANameThatIsTooLongLeavesNothing) {
  PosixTree tree = *PosixTree::Open(dir_.path());
  const std::string long_name(300, 'x');
  EXPECT_EQ(tree.PutIfAbsent(long_name, {}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

}  // namespace
}  // namespace holdfast::ckpt

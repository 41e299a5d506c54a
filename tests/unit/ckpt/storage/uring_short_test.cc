// tests/unit/ckpt/storage/uring_short_test.cc: transfers that move less than
// was asked, and calls that are to be made again, injected where the backends
// meet the system: this program has a pwrite, a pread and an io_uring_submit of
// its own, which shorten what passes through them while a test says so.

#include <dlfcn.h>
#include <liburing.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/storage/blocking.h"
#include "ckpt/storage/open_storage.h"
#include "ckpt/storage/uring_storage.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace {

// What happens to a transfer of so many bytes: how many are asked for.
enum class Cut { kNone, kHalf, kOdd, kCrumbs, kNothing, kAgain };
std::atomic<Cut> cut = Cut::kNone;
std::atomic<int> cuts = 0;  // how many were shortened

size_t Shortened(size_t size) {
  size_t now = size;
  switch (cut.load()) {
    case Cut::kHalf:  // whole blocks
      now = std::max<size_t>(4096, size / 2 / 4096 * 4096);
      break;
    case Cut::kOdd:
      now = std::min<size_t>(size, 5000);
      break;
    case Cut::kCrumbs:  // less than a block, some times
      now = cuts < 50 ? std::min<size_t>(size, 100) : size;
      break;
    case Cut::kNothing:
      now = 0;
      break;
    case Cut::kNone:
    case Cut::kAgain:
      break;
  }
  cuts += now != size;
  return now;
}

}  // namespace

extern "C" {

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  size = Shortened(size);
  return size == 0 ? 0 : syscall(SYS_pwrite64, fd, data, size, offset);
}

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  return syscall(SYS_pread64, fd, data, Shortened(size), offset);
}

int io_uring_submit(io_uring* ring) {
  static const auto real =
      reinterpret_cast<int (*)(io_uring*)>(dlsym(RTLD_NEXT, "io_uring_submit"));
  const unsigned mask = ring->sq.ring_mask;
  for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; ++i) {
    io_uring_sqe& sqe = ring->sq.sqes[i & mask];
    const bool moves =
        sqe.opcode == IORING_OP_WRITE || sqe.opcode == IORING_OP_WRITE_FIXED ||
        sqe.opcode == IORING_OP_READ || sqe.opcode == IORING_OP_READ_FIXED;
    if (!moves) continue;
    sqe.len = static_cast<unsigned>(Shortened(sqe.len));
    // The kernel answers EAGAIN where it would have to wait, such as for room.
    if (cut == Cut::kAgain) sqe.rw_flags = RWF_NOWAIT;
  }
  return real(ring);
}

}  // extern "C"

namespace holdfast::ckpt {
namespace {

constexpr FileId kFile{1};
constexpr size_t kSize = 256 * 1024;

struct Backend {
  StorageBackend backend;
  bool direct_io;
  const char* name;
};

class ShortTransferTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (GetParam().backend == StorageBackend::kUring && !ProbeUring().ok()) {
      GTEST_SKIP() << ProbeUring();
    }
    auto opened = OpenStorage({.location = dir_.path(),
                               .backend = GetParam().backend,
                               .direct_io = GetParam().direct_io,
                               .fault = ""});
    ASSERT_TRUE(opened.ok()) << opened.status();
    storage_ = *std::move(opened);
    for (size_t i = 0; i < kSize; ++i) {
      data_.span()[i] = static_cast<std::byte>(i * 131 >> 3);
    }
  }
  void TearDown() override { cut = Cut::kNone; }

  static void Begin(Cut how) {
    cuts = 0;
    cut = how;
  }
  // Unaligned cuts are refused by O_DIRECT.
  bool direct() const { return storage_->traits().direct_io; }

  tests::TempDir dir_;
  std::unique_ptr<Storage> storage_;
  AlignedBuffer data_{kSize};
};

INSTANTIATE_TEST_SUITE_P(
    Backends, ShortTransferTest,
    testing::Values(Backend{StorageBackend::kPosix, false, "posix"},
                    Backend{StorageBackend::kUring, true, "uring_direct"},
                    Backend{StorageBackend::kUring, false, "uring_buffered"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(ShortTransferTest, WritesAndReadsAreCompletedToTheLastByte) {
  for (const Cut how : {Cut::kHalf, Cut::kOdd, Cut::kCrumbs}) {
    if (direct() && how != Cut::kHalf) continue;
    SCOPED_TRACE(static_cast<int>(how));
    Blocking io(*storage_);
    ASSERT_TRUE(io.Create("f", kFile).ok());
    Begin(how);
    const absl::Status written = io.Write(kFile, 0, data_.span());
    EXPECT_TRUE(written.ok()) << written;
    EXPECT_GT(cuts, 0);
    cut = Cut::kNone;
    ASSERT_TRUE(io.Sync(kFile).ok());
    ASSERT_TRUE(io.Close(kFile).ok());

    ASSERT_EQ(*io.Open("f", kFile), kSize);
    AlignedBuffer back(kSize);
    // A read that brings less than a block is a file that shrank.
    Begin(how == Cut::kCrumbs ? Cut::kNone : how);
    const auto read = io.Read(kFile, 0, back.span());
    cut = Cut::kNone;
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, kSize);
    EXPECT_EQ(std::memcmp(back.data(), data_.data(), kSize), 0);
    ASSERT_TRUE(io.Close(kFile).ok());
    ASSERT_TRUE(io.Remove("f").ok());
  }
}

TEST_P(ShortTransferTest, AWriteThatMovesNothingIsAnErrorAndNoLoop) {
  Blocking io(*storage_);
  ASSERT_TRUE(io.Create("f", kFile).ok());
  Begin(Cut::kNothing);
  const absl::Status written = io.Write(kFile, 0, data_.span());
  cut = Cut::kNone;
  EXPECT_TRUE(absl::IsUnavailable(written)) << written;
  EXPECT_FALSE(io.Sync(kFile).ok()) << "the file is poisoned";
  io.Close(kFile).IgnoreError();
}

// pwrite(2) waits by itself, so this is io_uring's alone.
TEST(UringAgainTest, AKernelThatAlwaysSaysAgainIsAnErrorAndNoLoop) {
  if (!ProbeUring().ok()) GTEST_SKIP() << ProbeUring();
  const tests::TempDir dir;
  const AlignedBuffer data(kSize);
  for (const bool direct_io : {true, false}) {
    const auto storage = OpenStorage({.location = dir.path(),
                                      .backend = StorageBackend::kUring,
                                      .direct_io = direct_io,
                                      .fault = ""});
    ASSERT_TRUE(storage.ok()) << storage.status();
    Blocking io(**storage);
    ASSERT_TRUE(io.Create(direct_io ? "direct" : "buffered", kFile).ok());
    cut = Cut::kAgain;
    const absl::Status written = io.Write(kFile, 0, data.span());
    cut = Cut::kNone;
    io.Close(kFile).IgnoreError();
    if (written.ok()) {
      GTEST_SKIP() << "this file system makes room without waiting";
    }
    EXPECT_TRUE(absl::IsUnavailable(written)) << written;
    EXPECT_NE(std::string(written.message()).find("EAGAIN"), std::string::npos)
        << written;
  }
}

}  // namespace
}  // namespace holdfast::ckpt

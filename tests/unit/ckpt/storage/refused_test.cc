// tests/unit/ckpt/storage/refused_test.cc: what the system refuses, asked of
// the system: io_uring forbidden by a seccomp filter as containers do it,
// memory that may not be locked, a full file system, a read-only one. Each runs
// in a child process. The last two mount, so they want root.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/storage/blocking.h"
#include "ckpt/storage/open_storage.h"
#include "ckpt/storage/raw_speed.h"
#include "ckpt/storage/uring_storage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/in_child.h"
#include "tests/support/temp_dir.h"
#include "tests/support/thread_limit.h"

namespace holdfast::ckpt {
namespace {

using tests::InChild;

constexpr FileId kFile{1};

// From here on this system call answers `error`.
bool Forbid(uint32_t system_call, int error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, system_call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K,
               SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {4, filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(RefusedTest, WithoutUringFilesAreWrittenByPlainCalls) {
  const tests::TempDir dir;
  EXPECT_EQ(
      InChild([&]() -> std::string {
        if (!Forbid(SYS_io_uring_setup, EPERM)) {
          return "cannot install a filter";
        }
        const auto forced = OpenStorage({.location = dir.path(),
                                         .backend = StorageBackend::kUring,
                                         .fault = ""});
        if (forced.status().code() != absl::StatusCode::kPermissionDenied) {
          return "forced: " + forced.status().ToString();
        }
        const auto storage = OpenStorage({.location = dir.path(), .fault = ""});
        if (!storage.ok()) return storage.status().ToString();
        if ((*storage)->traits().name != "posix") return "not posix";
        const absl::Status put = Blocking(**storage).PutIfAbsent("f", {});
        if (!put.ok()) return put.ToString();
        const auto speed =
            MeasureRawSpeed(dir.path(), {.bytes_max = 1 << 20, .depth = 1});
        if (!speed.ok()) return speed.status().ToString();
        return speed->method.starts_with("pwrite") ? "" : speed->method;
      }),
      "");
}

// A server that fails while it makes a name may have made it: only refusals of
// the name or of the space say that there is none.
TEST(RefusedTest, APutWhoseLinkFailsInTheDeviceIsUnknown) {
  struct Case {
    int error;
    absl::StatusCode code;
  };
  for (const Case& c : {Case{EIO, absl::StatusCode::kUnknown},
                        Case{ETIMEDOUT, absl::StatusCode::kUnknown},
                        Case{ESTALE, absl::StatusCode::kUnknown},
                        Case{EEXIST, absl::StatusCode::kAlreadyExists},
                        Case{ENOSPC, absl::StatusCode::kResourceExhausted},
                        Case{EACCES, absl::StatusCode::kPermissionDenied}}) {
    const tests::TempDir dir;
    EXPECT_EQ(InChild([&]() -> std::string {
                const auto storage =
                    OpenStorage({.location = dir.path(),
                                 .backend = StorageBackend::kPosix,
                                 .fault = ""});
                if (!storage.ok()) return storage.status().ToString();
                if (!Forbid(SYS_linkat, c.error)) return "no filter";
                Blocking io(**storage);
                const absl::Status put = io.PutIfAbsent("f", {});
                return put.code() == c.code ? "" : put.ToString();
              }),
              "");
  }
}

TEST(RefusedTest, MemoryThatMayNotBeLockedIsWrittenUnregistered) {
  if (!ProbeUring().ok()) GTEST_SKIP() << ProbeUring();
  const tests::TempDir dir;
  EXPECT_EQ(InChild([&]() -> std::string {
              ::chmod(dir.path().c_str(), 0777);
              // The ring itself takes a few pages of it.
              const rlimit little = {512 << 10, 512 << 10};
              ::setrlimit(RLIMIT_MEMLOCK, &little);
              // Root may lock memory whatever the limit.
              if (::geteuid() == 0 && ::setuid(65534) != 0) return "setuid";
              auto storage = OpenUringStorage({.root = dir.path()});
              if (!storage.ok()) return storage.status().ToString();
              AlignedBuffer data(1 << 20);
              const std::span<std::byte> span = data.span();
              (*storage)->RegisterBuffers({&span, 1});
              if ((*storage)->traits().registered_buffers) return "registered";
              Blocking io(**storage);
              const absl::Status created = io.Create("f", kFile);
              if (!created.ok()) return created.ToString();
              return std::string(io.Write(kFile, 0, data.span()).message());
            }),
            "");
}

// io_uring's own threads count as the user's. A sync always wants one.
TEST(RefusedTest, WhereTheKernelGetsNoThreadPlainCallsWriteAndSync) {
  if (!ProbeUring().ok()) GTEST_SKIP() << ProbeUring();
  const tests::TempDir dir;
  const std::string failure = InChild([&]() -> std::string {
    ::chmod(dir.path().c_str(), 0777);
    if (!tests::LimitThreads(0)) return "skip";
    auto storage = OpenUringStorage({.root = dir.path()});
    if (!storage.ok()) return storage.status().ToString();
    Blocking io(**storage);
    AlignedBuffer data(1 << 20);
    std::fill(data.span().begin(), data.span().end(), std::byte{7});
    absl::Status status = io.Create("f", kFile);
    if (status.ok()) status = io.Write(kFile, 0, data.span());
    if (status.ok()) status = io.Sync(kFile);
    if (status.ok()) status = io.Close(kFile);
    AlignedBuffer back(1 << 20);
    if (status.ok()) status = io.Open("f", kFile).status();
    if (status.ok()) status = io.Read(kFile, 0, back.span()).status();
    if (!status.ok()) return status.ToString();
    return std::ranges::equal(data.span(), back.span()) ? "" : "other bytes";
  });
  if (failure == "skip") GTEST_SKIP() << "this user's threads have no limit";
  EXPECT_EQ(failure, "");
}

// A file system of one MiB at `dir`, seen by this process alone.
std::string MountSmall(const std::string& dir, unsigned long flags) {
  if (::unshare(CLONE_NEWNS) != 0) return "skip";
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return "skip";
  }
  if (::mount("tmpfs", dir.c_str(), "tmpfs", flags, "size=1m") != 0) {
    return "skip";
  }
  return "";
}

// checkpoints/ may be a link to another disk, which knows no O_DIRECT.
TEST(RefusedTest, AFileWhereDirectIoIsRefusedIsWrittenWithoutIt) {
  if (!ProbeUring().ok()) GTEST_SKIP() << ProbeUring();
  const tests::TempDir dir;
  const std::string failure = InChild([&]() -> std::string {
    const std::string inner = dir.path() + "/inner";
    if (::mkdir(inner.c_str(), 0777) != 0) return "mkdir";
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("ramfs", inner.c_str(), "ramfs", 0, nullptr) != 0) {
      return "skip";
    }
    const auto storage = OpenStorage({.location = dir.path(),
                                      .backend = StorageBackend::kUring,
                                      .fault = ""});
    if (!storage.ok()) return storage.status().ToString();
    if (!(*storage)->traits().direct_io) return "skip";
    Blocking io(**storage);
    const AlignedBuffer data(8192);
    for (const absl::Status& status :
         {io.Create("inner/f", kFile, 8192), io.Write(kFile, 0, data.span()),
          io.Sync(kFile), io.Close(kFile)}) {
      if (!status.ok()) return status.ToString();
    }
    const auto size = io.Open("inner/f", kFile);
    if (!size.ok()) return size.status().ToString();
    return *size == 8192 ? "" : "another size";
  });
  if (failure == "skip") GTEST_SKIP() << "no mount, or no O_DIRECT at all";
  EXPECT_EQ(failure, "");
}

class RefusedByFileSystemTest
    : public ::testing::TestWithParam<StorageBackend> {};
INSTANTIATE_TEST_SUITE_P(Backends, RefusedByFileSystemTest,
                         ::testing::Values(StorageBackend::kAuto,
                                           StorageBackend::kPosix));

TEST_P(RefusedByFileSystemTest, AFullOneIsResourceExhausted) {
  const tests::TempDir dir;
  const std::string failure = InChild([&]() -> std::string {
    if (const std::string no = MountSmall(dir.path(), 0); !no.empty()) {
      return no;
    }
    const auto storage = OpenStorage(
        {.location = dir.path(), .backend = GetParam(), .fault = ""});
    if (!storage.ok()) return storage.status().ToString();
    Blocking io(**storage);
    const AlignedBuffer data(2 << 20);
    const absl::Status reserved = io.Create("f", kFile, 2 << 20);
    if (!absl::IsResourceExhausted(reserved)) return reserved.ToString();
    if (!io.List(".")->empty()) return "the name was left behind";
    const absl::Status created = io.Create("f", kFile);
    if (!created.ok()) return created.ToString();
    const absl::Status written = io.Write(kFile, 0, data.span());
    if (!absl::IsResourceExhausted(written)) return written.ToString();
    const absl::Status synced = io.Sync(kFile);
    if (!absl::IsResourceExhausted(synced)) return synced.ToString();
    const absl::Status put = io.PutIfAbsent("m", data.span());
    if (!absl::IsResourceExhausted(put)) return put.ToString();
    if (io.List(".")->size() != 1) return "a failed put left a name";
    return "";
  });
  if (failure == "skip") GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_EQ(failure, "");
}

TEST_P(RefusedByFileSystemTest, AReadOnlyOneIsPermissionDenied) {
  const tests::TempDir dir;
  const std::string failure = InChild([&]() -> std::string {
    if (const std::string no = MountSmall(dir.path(), MS_RDONLY); !no.empty()) {
      return no;
    }
    // Opening is allowed: someone may want to read.
    const auto storage = OpenStorage(
        {.location = dir.path(), .backend = GetParam(), .fault = ""});
    if (!storage.ok()) return storage.status().ToString();
    Blocking io(**storage);
    for (const absl::Status& status :
         {io.Create("f", kFile), io.MakeDir("d"), io.PutIfAbsent("m", {})}) {
      if (!absl::IsPermissionDenied(status)) return status.ToString();
    }
    return io.List(".").ok() ? "" : "cannot list";
  });
  if (failure == "skip") GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_EQ(failure, "");
}

}  // namespace
}  // namespace holdfast::ckpt

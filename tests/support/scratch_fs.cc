// tests/support/scratch_fs.cc: mkfs, mount, shutdown, umount.

#include "tests/support/scratch_fs.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/storage/fd.h"

namespace holdfast::tests {
namespace {

// The kernel's fs/xfs/libxfs/xfs_fs.h and fs/ext4/ext4.h, which are in no
// package of headers: one number and one set of flags for both.
constexpr unsigned long kGoingDown = _IOR('X', 125, uint32_t);
constexpr uint32_t kNoLogFlush = 2;

// mkfs.xfs refuses less.
constexpr int kXfsMibMin = 300;

absl::Status Run(const std::string& command) {
  const std::string quiet = command + " >/dev/null 2>&1";
  if (std::system(quiet.c_str()) == 0) return absl::OkStatus();
  return absl::UnimplementedError("'" + command + "' fails here");
}

absl::Status Errno(const std::string& doing) {
  return absl::UnavailableError(
      absl::StrFormat("%s: %s", doing, std::strerror(errno)));
}

// Once for the process; the threads it starts later are in it too.
absl::Status OwnMounts() {
  static const absl::Status status = [] {
    if (::geteuid() != 0) {
      return absl::UnimplementedError("mounting needs root");
    }
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      return absl::UnimplementedError(absl::StrFormat(
          "a mount namespace is refused here: %s", std::strerror(errno)));
    }
    return absl::OkStatus();
  }();
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ScratchFs>> ScratchFs::Make(
    const std::string& kind, const std::string& base, int size_mib,
    const std::string& mount_options) {
  HF_RETURN_IF_ERROR(OwnMounts());
  if (::mkdir(base.c_str(), 0755) != 0) return Errno("making " + base);
  std::unique_ptr<ScratchFs> fs(new ScratchFs(
      kind, base,
      kind == "tmpfs" ? absl::StrFormat("size=%dm", size_mib) : mount_options));
  if (kind != "tmpfs") {
    if (kind == "xfs") size_mib = std::max(size_mib, kXfsMibMin);
    HF_RETURN_IF_ERROR(
        Run(absl::StrFormat("truncate -s %dM %s.img", size_mib, base)));
    HF_RETURN_IF_ERROR(Run(absl::StrFormat(
        kind == "xfs" ? "mkfs.xfs -q -f %s.img" : "mkfs.ext4 -q -F %s.img",
        base)));
  }
  HF_RETURN_IF_ERROR(fs->Mount());
  return fs;
}

ScratchFs::~ScratchFs() {
  // Lazily, so that a process that still has a file open holds nothing up.
  if (mounted_) ::umount2(base_.c_str(), MNT_DETACH);
  ::unlink((base_ + ".img").c_str());
}

absl::Status ScratchFs::Mount() {
  const std::string options =
      mount_options_.empty() ? "" : "," + mount_options_;
  HF_RETURN_IF_ERROR(Run(
      kind_ == "tmpfs"
          ? absl::StrFormat("mount -t tmpfs -o rw%s none %s", options, base_)
          : absl::StrFormat("mount -t %s -o loop%s %s.img %s", kind_, options,
                            base_, base_)));
  mounted_ = true;
  return absl::OkStatus();
}

absl::Status ScratchFs::Shutdown() {
  const ckpt::Fd fd(::open(base_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  uint32_t flags = kNoLogFlush;
  if (!fd.valid() || ::ioctl(fd.get(), kGoingDown, &flags) != 0) {
    return Errno("shutting down " + base_);
  }
  return absl::OkStatus();
}

absl::Status ScratchFs::Remount() {
  // A process that was killed lets go of its files a moment later.
  for (int tries = 1;; ++tries) {
    if (::umount(base_.c_str()) == 0) break;
    if (errno != EBUSY || tries == 2000) return Errno("unmounting " + base_);
    ckpt::RealClock().Sleep(absl::Milliseconds(5));
  }
  mounted_ = false;
  return Mount();
}

absl::Status ScratchFs::SetReadOnly(bool read_only) {
  return Run(absl::StrFormat("mount -o remount,%s %s", read_only ? "ro" : "rw",
                             base_));
}

}  // namespace holdfast::tests

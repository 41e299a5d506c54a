// tools/convert/out_file.cc: see out_file.h.

#include "tools/convert/out_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/storage/errno_status.h"

namespace holdfast::tools {
namespace {

constexpr uint64_t kBlock = ckpt::AlignedBuffer::kAlignment;

}  // namespace

absl::Status WriteAllAt(int fd, uint64_t offset,
                        std::span<const std::byte> bytes,
                        const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t wrote =
        ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      return ckpt::ErrnoStatus(wrote < 0 ? errno : EIO, "writing", path);
    }
    bytes = bytes.subspan(static_cast<size_t>(wrote));
    offset += static_cast<uint64_t>(wrote);
  }
  return absl::OkStatus();
}

OutFile::OutFile(int fd, std::string path)
    : fd_(fd),
      path_(std::move(path)),
      // The descriptor's own file, whatever its path means by now.
      direct_(::open(absl::StrFormat("/proc/self/fd/%d", fd).c_str(),
                     O_WRONLY | O_DIRECT | O_CLOEXEC)),
      is_direct_(direct_.valid()) {}

absl::Status OutFile::Reserve(uint64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  while (::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG) break;
    return ckpt::ErrnoStatus(errno, "reserving space for", path_);
  }
  return absl::OkStatus();
}

absl::Status OutFile::WriteAt(uint64_t offset,
                              std::span<const std::byte> bytes) {
  const bool fits = offset % kBlock == 0 &&
                    reinterpret_cast<uintptr_t>(bytes.data()) % kBlock == 0;
  const uint64_t whole = bytes.size() / kBlock * kBlock;
  if (is_direct_ && fits && whole > 0) {
    const absl::Status written =
        WriteAllAt(direct_.get(), offset, bytes.first(whole), path_);
    if (written.ok()) {
      offset += whole;
      bytes = bytes.subspan(whole);
    } else if (absl::IsInvalidArgument(written)) {
      is_direct_ = false;  // larger blocks, or none: what is there is repeated
    } else {
      return written;
    }
  }
  if (bytes.empty()) return absl::OkStatus();
  HF_RETURN_IF_ERROR(WriteAllAt(fd_, offset, bytes, path_));
  // The kernel starts to write now, or the sync has all of it to do.
  ::sync_file_range(fd_, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes.size()), SYNC_FILE_RANGE_WRITE);
  return absl::OkStatus();
}

}  // namespace holdfast::tools

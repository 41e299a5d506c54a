// ckpt/storage/raw_speed.cc: a nameless file, written and read in rounds.

#include "ckpt/storage/raw_speed.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/storage/errno_status.h"
#include "ckpt/storage/fd.h"
#include "ckpt/storage/names.h"
#include "ckpt/storage/raw_transfer.h"
#include "ckpt/storage/storage_probe.h"
#include "ckpt/storage/uring_storage.h"

namespace holdfast::ckpt {
namespace {

constexpr uint64_t kBytesMin = uint64_t{16} << 20;

// A file in `dir` that has no name, or loses it at once.
Fd OpenNameless(const std::string& dir, int flags) {
  Fd fd(::open(dir.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC | flags, 0600));
  if (fd.valid()) return fd;
  const std::string name =
      absl::StrFormat("%s/%sspeed.%d", dir, kTempPrefix, ::getpid());
  fd = Fd(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flags,
                 0600));
  const int error = errno;
  ::unlink(name.c_str());
  errno = error;
  return fd;
}

// One block after the other, for kernels without io_uring.
absl::Status PlainTransfer(int fd, bool is_write, std::span<std::byte> memory,
                           uint64_t offset, uint64_t size, size_t block) {
  for (uint64_t done = 0; done < size; done += block) {
    std::byte* const at = memory.data() + done % memory.size();
    const auto place = static_cast<off_t>(offset + done);
    const ssize_t moved = is_write ? ::pwrite(fd, at, block, place)
                                   : ::pread(fd, at, block, place);
    if (moved != static_cast<ssize_t>(block)) {
      return ErrnoStatus(moved < 0 ? errno : EIO, is_write ? "write" : "read",
                         "in blocks");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RawSpeed> MeasureRawSpeed(const std::string& dir,
                                         const RawSpeedOptions& options,
                                         const Clock& clock) {
  const size_t block = options.block_bytes;
  HF_CHECK(block >= 4096 && block % 4096 == 0 && options.depth > 0,
           "blocks of %d bytes, %d in flight", block, options.depth);
  const Fd root(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return ErrnoStatus(errno, "open the directory", dir);
  const bool direct = ProbeDirectIo(root.get()).ok();
  const bool uring = ProbeUring().ok();
  const Fd file = OpenNameless(dir, direct ? O_DIRECT : 0);
  if (!file.valid()) return ErrnoStatus(errno, "create a file in", dir);

  // Written once round, so that every page exists and none is zero.
  AlignedBuffer memory(block * options.depth);
  for (size_t i = 0; i < memory.size(); i += 8) {
    memory.data()[i] = static_cast<std::byte>(i / 8 * 2654435761u >> 13 | 1);
  }
  const uint64_t round = memory.size();
  uint64_t bytes_max = std::max(options.bytes_max / round, uint64_t{1}) * round;
  while (::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes_max)) != 0) {
    if (errno == EOPNOTSUPP) break;
    if (errno != ENOSPC || bytes_max / 2 < std::max(kBytesMin, round)) {
      return ErrnoStatus(errno, "reserve",
                         absl::StrFormat("%d bytes in %s", bytes_max, dir));
    }
    bytes_max = bytes_max / 2 / round * round;
  }
  const auto transfer = [&](bool is_write, uint64_t offset) {
    return uring ? RawUringTransfer(file.get(), is_write, memory.span(), offset,
                                    round, block, options.depth)
                 : PlainTransfer(file.get(), is_write, memory.span(), offset,
                                 round, block);
  };

  RawSpeed speed;
  speed.method = absl::StrFormat(
      "%s, %s, %d x %d bytes", uring ? "io_uring" : "pwrite",
      direct ? "O_DIRECT" : "page cache", uring ? options.depth : 1, block);
  absl::Duration begin = clock.Monotonic();
  do {
    HF_RETURN_IF_ERROR(transfer(/*is_write=*/true, speed.bytes));
    speed.bytes += round;
  } while (speed.bytes < bytes_max &&
           clock.Monotonic() - begin < options.time_max);
  if (::fsync(file.get()) != 0)
    return ErrnoStatus(errno, "sync a file in", dir);
  speed.write_bytes_per_s = static_cast<double>(speed.bytes) /
                            absl::ToDoubleSeconds(clock.Monotonic() - begin);
  if (!options.read || !direct) return speed;

  begin = clock.Monotonic();
  uint64_t read = 0;
  do {
    HF_RETURN_IF_ERROR(transfer(/*is_write=*/false, read));
    read += round;
  } while (read < speed.bytes && clock.Monotonic() - begin < options.time_max);
  speed.read_bytes_per_s = static_cast<double>(read) /
                           absl::ToDoubleSeconds(clock.Monotonic() - begin);
  return speed;
}

absl::StatusOr<double> MeasureRawRead(const std::string& path,
                                      const RawSpeedOptions& options,
                                      const Clock& clock) {
  // O_NONBLOCK: a FIFO under this name must not hold the call.
  const Fd file(::open(path.c_str(), O_RDONLY | O_DIRECT | O_NOFOLLOW |
                                         O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.valid()) {
    if (errno == EINVAL) {
      return absl::UnimplementedError(
          absl::StrFormat("read %s past the page cache: refused here", path));
    }
    return ErrnoStatus(errno, "open", path);
  }
  struct stat st = {};
  if (::fstat(file.get(), &st) != 0) return ErrnoStatus(errno, "look at", path);
  if (!S_ISREG(st.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("read %s: it is no regular file", path));
  }
  const size_t block = options.block_bytes;
  const uint64_t size =
      std::min(static_cast<uint64_t>(st.st_size), options.bytes_max) / block *
      block;
  if (size == 0) {
    return absl::OutOfRangeError(absl::StrFormat(
        "read %s: it has %d bytes, a block is %d", path, st.st_size, block));
  }
  const bool uring = ProbeUring().ok();
  AlignedBuffer memory(block * options.depth);
  const absl::Duration begin = clock.Monotonic();
  uint64_t done = 0;
  do {
    const uint64_t part = std::min<uint64_t>(memory.size(), size - done);
    HF_RETURN_IF_ERROR(uring ? RawUringTransfer(file.get(), /*is_write=*/false,
                                                memory.span(), done, part,
                                                block, options.depth)
                             : PlainTransfer(file.get(), /*is_write=*/false,
                                             memory.span(), done, part, block));
    done += part;
  } while (done < size && clock.Monotonic() - begin < options.time_max);
  return static_cast<double>(done) /
         absl::ToDoubleSeconds(clock.Monotonic() - begin);
}

}  // namespace holdfast::ckpt

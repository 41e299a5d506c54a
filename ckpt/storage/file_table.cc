// ckpt/storage/file_table.cc: what calls on open files answer.

#include "ckpt/storage/file_table.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/storage/errno_status.h"

namespace holdfast::ckpt {

absl::Status PoisonedStatus(const OpenFile& file, std::string_view operation) {
  return absl::Status(
      file.poisoned.code(),
      absl::StrFormat("%s %s: refused, since an earlier call failed: %s",
                      operation, file.path,
                      std::string(file.poisoned.message())));
}

absl::Status TooManyFiles(size_t files_max, std::string_view path) {
  return absl::ResourceExhaustedError(
      absl::StrFormat("open %s: this storage has %d files open, which is all "
                      "that files_max allows",
                      path, files_max));
}

absl::Status TransferError(int error, std::string_view operation,
                           const OpenFile& file, uint64_t offset, size_t size) {
  return ErrnoStatus(
      error, operation,
      absl::StrFormat("%s, offset %d, %d bytes", file.path, offset, size));
}

absl::Status ShrankStatus(const OpenFile& file, uint64_t offset) {
  return absl::OutOfRangeError(absl::StrFormat(
      "read %s: it had %d bytes when it was opened and now ends at %d",
      file.path, file.size, offset));
}

absl::Status CheckReadRange(const OpenFile& file, uint64_t offset,
                            size_t wanted, size_t* real) {
  if (offset >= file.size ||
      offset + wanted > RoundUp(file.size, kStorageAlignment)) {
    return absl::OutOfRangeError(
        absl::StrFormat("read %s, offset %d, %d bytes: the file has %d bytes",
                        file.path, offset, wanted, file.size));
  }
  *real = std::min<uint64_t>(wanted, file.size - offset);
  return absl::OkStatus();
}

absl::Status CutToWritten(OpenFile& file) {
  if (file.others || file.size <= file.written_end) return absl::OkStatus();
  int result;
  do {
    result = ::ftruncate(file.fd.get(), static_cast<off_t>(file.written_end));
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    return ErrnoStatus(errno, "truncate",
                       absl::StrFormat("%s from %d to %d bytes", file.path,
                                       file.size, file.written_end));
  }
  file.size = file.written_end;
  return absl::OkStatus();
}

}  // namespace holdfast::ckpt

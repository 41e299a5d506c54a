// tools/convert/dcp/byte_source.cc: pread of files that are opened by name
// inside one directory.

#include "tools/convert/dcp/byte_source.h"

#include <errno.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/storage/errno_status.h"
#include "tools/convert/dcp/regular_file.h"

namespace holdfast::tools {

absl::StatusOr<std::unique_ptr<FileSource>> FileSource::OpenIn(
    int dir, const std::string& dir_name, const std::string& file) {
  if (file.empty() || file == "." || file == ".." ||
      file.find('/') != std::string::npos ||
      file.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: the file name '%s' leads out of the directory", dir_name, file));
  }
  HF_ASSIGN_OR_RETURN(RegularFile opened, OpenRegularFile(dir, dir_name, file));
  return std::unique_ptr<FileSource>(new FileSource(
      std::move(opened.fd), opened.bytes, std::move(opened.path)));
}

absl::Status FileSource::Read(uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t read =
        ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) {
      return ckpt::ErrnoStatus(errno, "reading",
                               absl::StrFormat("%s at byte %d", name_, offset));
    }
    if (read == 0) {
      return absl::DataLossError(
          absl::StrFormat("%s ends at byte %d, %d more are expected", name_,
                          offset, out.size()));
    }
    offset += static_cast<uint64_t>(read);
    out = out.subspan(static_cast<size_t>(read));
  }
  return absl::OkStatus();
}

absl::Status MemorySource::Read(uint64_t offset, std::span<std::byte> out) {
  if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
    return absl::DataLossError(
        absl::StrFormat("%s has %d bytes, bytes %d to %d are wanted", name_,
                        bytes_.size(), offset, offset + out.size()));
  }
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadAll(ByteSource& source, uint64_t offset,
                                    uint64_t size) {
  if (offset > source.size() || size > source.size() - offset) {
    return absl::DataLossError(
        absl::StrFormat("%s has %d bytes; an entry of %d bytes at byte %d is "
                        "not inside it",
                        source.name(), source.size(), size, offset));
  }
  std::string bytes(size, '\0');
  HF_RETURN_IF_ERROR(source.Read(
      offset, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
  return bytes;
}

}  // namespace holdfast::tools

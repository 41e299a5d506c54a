// tools/convert/dcp/byte_source.h: bytes that can be read from anywhere, a file
// of a foreign checkpoint or memory.

#ifndef HOLDFAST_TOOLS_CONVERT_DCP_BYTE_SOURCE_H_
#define HOLDFAST_TOOLS_CONVERT_DCP_BYTE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/storage/fd.h"

namespace holdfast::tools {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // For messages.
  virtual const std::string& name() const = 0;
  // Fills `out` from byte `offset` on. kDataLoss when the source ends before.
  virtual absl::Status Read(uint64_t offset, std::span<std::byte> out) = 0;
};

// A regular file. Any thread may read (pread).
class FileSource final : public ByteSource {
 public:
  // `file` is one name inside the directory `dir` (an open descriptor, called
  // `dir_name` in messages). kInvalidArgument: the name has a '/' or is "..";
  // the file is a symbolic link or no regular file. kNotFound.
  static absl::StatusOr<std::unique_ptr<FileSource>> OpenIn(
      int dir, const std::string& dir_name, const std::string& file);

  uint64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  absl::Status Read(uint64_t offset, std::span<std::byte> out) override;

 private:
  FileSource(ckpt::Fd fd, uint64_t size, std::string name)
      : fd_(std::move(fd)), size_(size), name_(std::move(name)) {}

  ckpt::Fd fd_;
  uint64_t size_;
  std::string name_;
};

// Bytes of the caller's, which outlive it.
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string_view bytes, std::string name)
      : bytes_(bytes), name_(std::move(name)) {}
  uint64_t size() const override { return bytes_.size(); }
  const std::string& name() const override { return name_; }
  absl::Status Read(uint64_t offset, std::span<std::byte> out) override;

 private:
  std::string_view bytes_;
  std::string name_;
};

// The bytes [offset, offset + size) of `source`, all in memory.
absl::StatusOr<std::string> ReadAll(ByteSource& source, uint64_t offset,
                                    uint64_t size);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_DCP_BYTE_SOURCE_H_

// tools/convert/out_file.h: a file in the making that several threads write,
// past the page cache where the file system allows it: a file that is longer
// than memory would push out what others keep there, and the copy costs as much
// as a fast disk takes.
//
// Blocks on the disk.

#ifndef HOLDFAST_TOOLS_CONVERT_OUT_FILE_H_
#define HOLDFAST_TOOLS_CONVERT_OUT_FILE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "ckpt/storage/fd.h"

namespace holdfast::tools {

// All of `bytes`, at `offset`. `path` is for messages.
absl::Status WriteAllAt(int fd, uint64_t offset,
                        std::span<const std::byte> bytes,
                        const std::string& path);

class OutFile {
 public:
  // `fd` is open for writing and stays the caller's.
  OutFile(int fd, std::string path);

  // Takes the space for it: kResourceExhausted now, not in the middle. Where
  // that cannot be asked for it is found out by writing.
  absl::Status Reserve(uint64_t bytes);
  // Any thread. Whole blocks go past the page cache when `offset` and the
  // memory are multiples of 4096 bytes.
  absl::Status WriteAt(uint64_t offset, std::span<const std::byte> bytes);

 private:
  const int fd_;
  const std::string path_;
  ckpt::Fd direct_;  // the same file with O_DIRECT, if it can be had
  std::atomic<bool> is_direct_;
};

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_OUT_FILE_H_

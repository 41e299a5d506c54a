// trainer/data/mapped_file.h: a whole file, read-only, in memory by mmap.
//
// Opening costs a few system calls whatever the size; pages come from disk when
// touched. Any thread may read. A file that another process truncates while it
// is mapped ends us with SIGBUS, so token files are replaced by rename only.

#ifndef HOLDFAST_TRAINER_DATA_MAPPED_FILE_H_
#define HOLDFAST_TRAINER_DATA_MAPPED_FILE_H_

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace holdfast::trainer {

class MappedFile {
 public:
  // kInvalidArgument: there is no such file, or it is no regular file (both a
  //     wrong configuration). kUnavailable: any other error of the system.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_MAPPED_FILE_H_

// tools/convert/safetensors_writer.h: a directory of safetensors files that
// appears whole or not at all.
//
//   .OUT.partial/  model-00001-of-00003.safetensors ...  -> synced, renamed OUT
//
// Blocks on the disk; one thread.

#ifndef HOLDFAST_TOOLS_CONVERT_SAFETENSORS_WRITER_H_
#define HOLDFAST_TOOLS_CONVERT_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/storage/fd.h"
#include "tools/convert/safetensors.h"

namespace holdfast::tools {

// OUT in the making, as .OUT.partial. Only one process at a time can hold it;
// what a killed one left is removed at the start.
class PartialDirectory {
 public:
  // kFailedPrecondition: OUT is there, or somebody else is making it right now.
  // kResourceExhausted: its file system has less than `bytes` free.
  static absl::StatusOr<PartialDirectory> Create(const std::string& out,
                                                 uint64_t bytes);
  PartialDirectory(PartialDirectory&&) = default;
  // Removes it, unless Publish went well.
  ~PartialDirectory();

  // A new file, for writing.
  absl::StatusOr<ckpt::Fd> CreateFile(const std::string& name);
  // A whole small file, synced.
  absl::Status WriteFile(const std::string& name, std::string_view text);
  // Syncs and renames. kFailedPrecondition: OUT has appeared meanwhile.
  absl::Status Publish();

  // For messages.
  const std::string& path() const { return path_; }

 private:
  PartialDirectory() = default;

  std::string out_;
  std::string path_;
  ckpt::Fd parent_;
  ckpt::Fd fd_;
};

// All of `bytes`, at the file's end.
absl::Status WriteAll(int fd, std::span<const std::byte> bytes,
                      const std::string& path);

// How the tensors are cut into files: in their order, a new file where one more
// tensor would make it longer than `file_bytes_max` (a longer tensor has one of
// its own). Pure.
std::vector<std::vector<SafeTensor>> CutIntoFiles(
    std::span<const SafeTensor> tensors, uint64_t file_bytes_max);

// "model.safetensors", or "model-00001-of-00003.safetensors".
std::string SafetensorsFileName(size_t index, size_t count);

// So many bytes are asked for at once, at most.
inline constexpr uint64_t kPieceBytes = uint64_t{16} << 20;

struct SafetensorsToWrite {
  std::vector<SafeTensor> tensors;  // name, dtype, shape, bytes
  std::map<std::string, std::string> metadata;
  uint64_t file_bytes_max = 0;
  // Bytes [first, first + out.size()) of the tensor at this place in `tensors`.
  // Asked in order, of whole elements.
  std::function<absl::Status(size_t tensor, uint64_t first,
                             std::span<std::byte> out)>
      fill;
  std::function<void(uint64_t done)> on_progress;  // may be null
};

// The files, and the index where there are several. Returns their names.
// Memory: 16 MiB and the headers.
absl::StatusOr<std::vector<std::string>> WriteSafetensors(
    PartialDirectory& directory, const SafetensorsToWrite& what);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_SAFETENSORS_WRITER_H_

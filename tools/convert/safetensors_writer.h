// tools/convert/safetensors_writer.h: tensors as safetensors files, in a
// directory that appears whole or not at all.
//
//   .OUT.partial/  model-00001-of-00003.safetensors ...  -> synced, renamed OUT
//
// Blocks on the disk.

#ifndef HOLDFAST_TOOLS_CONVERT_SAFETENSORS_WRITER_H_
#define HOLDFAST_TOOLS_CONVERT_SAFETENSORS_WRITER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/convert/partial_directory.h"
#include "tools/convert/safetensors.h"
#include "tools/convert/work_threads.h"

namespace holdfast::tools {

// How the tensors are cut into files: in their order, a new file where one more
// tensor would make it longer than `file_bytes_max` (a longer tensor has one of
// its own). Pure.
std::vector<std::vector<SafeTensor>> CutIntoFiles(
    std::span<const SafeTensor> tensors, uint64_t file_bytes_max);

// "model.safetensors", or "model-00001-of-00003.safetensors".
std::string SafetensorsFileName(size_t index, size_t count);

// Bytes [first, first + out.size()) of the tensor at this place in the list;
// whole elements.
struct TensorRun {
  size_t tensor = 0;
  uint64_t first = 0;
  std::span<std::byte> out;
};

struct SafetensorsToWrite {
  // name, dtype, shape, bytes. All elements are of 1, 2, 4 or 8 bytes, so that
  // no window cuts one.
  std::vector<SafeTensor> tensors;
  std::map<std::string, std::string> metadata;
  uint64_t file_bytes_max = 0;
  // A file is made so many of its bytes at a time; a multiple of 4096.
  uint64_t window_bytes = 0;
  // `runs` follow each other through the tensors. Called by how.threads at
  // once, each with a `worker` of its own.
  std::function<absl::Status(std::span<const TensorRun> runs, int worker)> fill;
};

// The files, and the index where there are several, synced. Returns their
// names. Each window of a file is filled and written by one thread, in the
// order of the bytes. `done`: bytes of tensors, so far.
//
// Memory: how.threads x window_bytes, and the headers.
absl::StatusOr<std::vector<std::string>> WriteSafetensors(
    PartialDirectory& directory, const SafetensorsToWrite& what,
    const WorkThreads& how, std::atomic<uint64_t>* done);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_SAFETENSORS_WRITER_H_

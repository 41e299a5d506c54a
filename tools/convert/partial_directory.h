// tools/convert/partial_directory.h: a directory that appears whole and synced,
// or not at all, and never replaces another (partial_place.h). Any thread;
// blocks on the disk.

#ifndef HOLDFAST_TOOLS_CONVERT_PARTIAL_DIRECTORY_H_
#define HOLDFAST_TOOLS_CONVERT_PARTIAL_DIRECTORY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/storage/fd.h"
#include "tools/convert/partial_place.h"

namespace holdfast::tools {

class PartialDirectory {
 public:
  // Whether an export makes a file of this name.
  using IsOurs = bool (*)(const std::string& name);

  // What a killed one left is removed at the start. Errors of
  // PartialPlace's Open and CheckSpace; kAlreadyExists: another process makes
  // it; kFailedPrecondition: what is at the temporary name holds a file that is
  // not ours.
  static absl::StatusOr<PartialDirectory> Create(const std::string& out,
                                                 uint64_t bytes,
                                                 IsOurs is_ours);
  PartialDirectory(PartialDirectory&&) = default;
  // Removes it, unless Publish went well.
  ~PartialDirectory();

  // A new file, for writing.
  absl::StatusOr<ckpt::Fd> CreateFile(const std::string& name);
  // A whole small file, synced.
  absl::Status WriteFile(const std::string& name, std::string_view text);
  // Syncs and renames. kFailedPrecondition: OUT has appeared meanwhile.
  absl::Status Publish();

  const std::string& path() const { return place_.path(); }  // until then

 private:
  PartialDirectory(PartialPlace place, IsOurs is_ours)
      : place_(std::move(place)), is_ours_(is_ours) {}

  PartialPlace place_;
  IsOurs is_ours_;
  ckpt::Fd fd_;  // none: published
};

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_PARTIAL_DIRECTORY_H_

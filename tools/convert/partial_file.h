// tools/convert/partial_file.h: one file that appears whole and synced, or not
// at all, and never replaces another (partial_place.h). Any thread; blocks on
// the disk.

#ifndef HOLDFAST_TOOLS_CONVERT_PARTIAL_FILE_H_
#define HOLDFAST_TOOLS_CONVERT_PARTIAL_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/storage/fd.h"
#include "tools/convert/partial_place.h"

namespace holdfast::tools {

class PartialFile {
 public:
  // What a killed one left is removed first: a file that begins with
  // `signature`, with as many zeros, or is shorter. Errors of
  // PartialPlace's Open and CheckSpace; kAlreadyExists: another process writes
  // it; kFailedPrecondition: what has the temporary name is something else.
  static absl::StatusOr<PartialFile> Create(const std::string& out,
                                            uint64_t bytes,
                                            std::string_view signature);
  ~PartialFile();  // What was not published goes.
  PartialFile(PartialFile&&) = default;

  int fd() const { return fd_.get(); }  // for reading and writing
  const std::string& path() const { return place_.path(); }  // until then

  // Syncs it and gives it its name. kFailedPrecondition: there is something.
  absl::Status Publish();

 private:
  explicit PartialFile(PartialPlace place) : place_(std::move(place)) {}

  PartialPlace place_;
  ckpt::Fd fd_;  // none: published
};

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_PARTIAL_FILE_H_

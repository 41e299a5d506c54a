// tools/convert/dcp/regular_file.h: a file of somebody else's making, opened by
// its name in a directory.
//
// Any thread; blocks on the disk.

#ifndef HOLDFAST_TOOLS_CONVERT_DCP_REGULAR_FILE_H_
#define HOLDFAST_TOOLS_CONVERT_DCP_REGULAR_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ckpt/storage/fd.h"

namespace holdfast::tools {

struct RegularFile {
  ckpt::Fd fd;       // to read
  std::string path;  // for messages
  uint64_t bytes = 0;
  int64_t changed_ns = 0;  // of the last change
};

// `name` is one part of a path, inside the directory that `directory` is open
// on and that messages call `directory_path`. kInvalidArgument: it is a
// symbolic link, a pipe, a device or a directory; kNotFound; or what the system
// says.
absl::StatusOr<RegularFile> OpenRegularFile(int directory,
                                            const std::string& directory_path,
                                            const std::string& name);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_DCP_REGULAR_FILE_H_

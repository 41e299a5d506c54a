// tools/convert/partial_file.h: one file that appears whole and synced, or not
// at all, and never replaces another.
//
// Until then it is ".NAME.partial" beside its later name. One that was left
// behind by somebody who was killed is removed first; one that is being written
// is respected. Any thread; blocks on the disk.

#ifndef HOLDFAST_TOOLS_CONVERT_PARTIAL_FILE_H_
#define HOLDFAST_TOOLS_CONVERT_PARTIAL_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/storage/fd.h"

namespace holdfast::tools {

class PartialFile {
 public:
  // kFailedPrecondition: there is something at `out`. kAlreadyExists: another
  // process writes it. kResourceExhausted: less than `bytes` are free there.
  static absl::StatusOr<PartialFile> Create(const std::string& out,
                                            uint64_t bytes);
  ~PartialFile();  // What was not published goes.
  PartialFile(PartialFile&&) = default;
  PartialFile& operator=(PartialFile&&) = default;

  int fd() const { return fd_.get(); }               // for reading and writing
  const std::string& path() const { return path_; }  // now

  // Syncs it and gives it its name. kFailedPrecondition: there is something.
  absl::Status Publish();

 private:
  PartialFile() = default;
  ckpt::Fd fd_;
  ckpt::Fd parent_;
  std::string out_;        // the path
  std::string name_;       // in the parent
  std::string path_;       // of what is there until then
  std::string temporary_;  // in the parent; "": published
};

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_PARTIAL_FILE_H_

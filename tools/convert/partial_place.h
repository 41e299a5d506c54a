// tools/convert/partial_place.h: what PartialFile and PartialDirectory share:
// the place of something that appears whole or not at all, and never replaces
// another.
//
// Until then it is ".NAME.partial" beside its later name, and locked by who
// makes it: a lock ends with its holder, also by a kill. Any thread; blocks on
// the disk.

#ifndef HOLDFAST_TOOLS_CONVERT_PARTIAL_PLACE_H_
#define HOLDFAST_TOOLS_CONVERT_PARTIAL_PLACE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/storage/fd.h"

namespace holdfast::tools {

class PartialPlace {
 public:
  // kFailedPrecondition: there is something at `out`. kInvalidArgument: it is
  // no name, or the directory that would hold it is not there.
  static absl::StatusOr<PartialPlace> Open(const std::string& out);

  int parent() const { return parent_.get(); }
  const std::string& out() const { return out_; }              // the path
  const std::string& path() const { return path_; }            // until then
  const std::string& temporary() const { return temporary_; }  // in the parent

  // Takes what `fd` is open on; true: it still has the temporary name. Whoever
  // held it may have published it just before, and another begun.
  // kAlreadyExists: another process writes it.
  absl::StatusOr<bool> Lock(int fd) const;
  absl::Status IsBeingWritten() const;
  // kResourceExhausted: less than `bytes` are free there.
  absl::Status CheckSpace(uint64_t bytes) const;

  // Gives it its name, closes `held`, which is open on it, and syncs the name.
  // kFailedPrecondition: something has appeared there. It has its name, and no
  // promise of surviving a power cut, when another error comes with `held`
  // closed.
  absl::Status PublishFile(ckpt::Fd& held) const;
  absl::Status PublishDirectory(ckpt::Fd& held) const;

 private:
  // 0, or the errno.
  using Rename = int (*)(int parent, const char* from, const char* to);
  absl::Status Publish(Rename without_flags, ckpt::Fd& held) const;

  std::string out_;
  std::string name_;  // in the parent
  std::string temporary_;
  std::string path_;
  ckpt::Fd parent_;
};

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_PARTIAL_PLACE_H_

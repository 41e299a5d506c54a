// tools/convert/outside.cc: see outside.h.

#include "tools/convert/outside.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/session/run_files.h"
#include "ckpt/storage/open_storage.h"

namespace holdfast::tools {

absl::Status CheckOutsideOf(const ckpt::CheckpointSource& source,
                            const std::string& out) {
  namespace fs = std::filesystem;
  HF_ASSIGN_OR_RETURN(const std::string text, ckpt::PathOfLocation(out));
  std::error_code error;
  fs::path from = fs::weakly_canonical(fs::absolute(source.path()), error);
  if (error) return absl::OkStatus();  // not of this file system's names
  const fs::path run = from.parent_path().parent_path();
  if (from.parent_path().filename() == ckpt::kCheckpointsDir &&
      fs::exists(run / ckpt::kRunIdName, error)) {
    from = run;
  }
  const fs::path to = fs::weakly_canonical(fs::absolute(text), error);
  if (error ||
      std::mismatch(from.begin(), from.end(), to.begin(), to.end()).first !=
          from.end()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "--out %s is in %s, which is only read; name a directory outside it", out,
      from.string()));
}

}  // namespace holdfast::tools

// ckpt/plan/file_names.cc: see file_names.h.

#include "ckpt/plan/file_names.h"

#include "absl/strings/str_format.h"
#include "ckpt/format/manifest_rules.h"

namespace holdfast::ckpt {

std::string FileNames::Dir(uint32_t dir) const { return ShardDirName(dir); }

std::string FileNames::DirOf(const std::string& checkpoint,
                             uint32_t file) const {
  if (per_dir_ == 0) return checkpoint;
  return checkpoint + "/" + ShardDirName(file / per_dir_);
}

std::string FileNames::NameOf(uint32_t file) const {
  const std::string name = absl::StrFormat("shard-%05d.hf", file);
  return per_dir_ == 0 ? name : ShardDirName(file / per_dir_) + "/" + name;
}

}  // namespace holdfast::ckpt

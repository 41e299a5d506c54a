// ckpt/plan/file_names.h: what the files of a checkpoint are called and in
// which directory each lies. Pure arithmetic, the same on every rank.
//
//   files_per_dir 0, or all fit      shard-00000.hf ... in the checkpoint's own
//   else                             d0000/shard-00000.hf ..., as many in each
//
// A directory is one lock on most file systems, so thousands of creates in it
// take turns.

#ifndef HOLDFAST_CKPT_PLAN_FILE_NAMES_H_
#define HOLDFAST_CKPT_PLAN_FILE_NAMES_H_

#include <cstdint>
#include <string>

namespace holdfast::ckpt {

class FileNames {
 public:
  // Of `files` files, at most `files_per_dir` (0: all) in a directory.
  FileNames(uint32_t files, uint32_t files_per_dir)
      : files_(files), per_dir_(files_per_dir < files ? files_per_dir : 0) {}

  // How many directories there are to be made; 0: none.
  uint32_t dirs() const {
    return per_dir_ == 0 ? 0 : (files_ + per_dir_ - 1) / per_dir_;
  }
  // "d0003" (below dirs())
  std::string Dir(uint32_t dir) const;
  // The directory of a file: "checkpoint" or "checkpoint/d0003".
  std::string DirOf(const std::string& checkpoint, uint32_t file) const;
  // "shard-00000.hf" or "d0003/shard-00000.hf".
  std::string NameOf(uint32_t file) const;

 private:
  uint32_t files_;
  uint32_t per_dir_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_PLAN_FILE_NAMES_H_

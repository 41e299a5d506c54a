// ckpt/convert/target_dir.h: the directory that a conversion makes: what is in
// it, what it may become, and its commit.
//
//   Look     empty; begun by this very conversion; complete; else refused
//   Begin    record, run.id, claim, seal, directories, files with their space
//   Commit   checkpoints/run.id, MANIFEST, and the record goes
//
// Until the commit a run directory lacks checkpoints/run.id while it has a
// seal, so that a job that is started in it by mistake stops ("is a file system
// not mounted?") instead of beginning from nothing.
//
// Blocks. One thread.

#ifndef HOLDFAST_CKPT_CONVERT_TARGET_DIR_H_
#define HOLDFAST_CKPT_CONVERT_TARGET_DIR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/types.h"
#include "ckpt/convert/convert_plan.h"
#include "ckpt/convert/convert_record.h"
#include "ckpt/format/manifest.h"
#include "ckpt/storage/fd.h"
#include "ckpt/storage/open_storage.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

// The attribute in which a result says what it was made of.
inline constexpr char kConversionAttribute[] = ".conversion";

class TargetDir {
 public:
  // Makes `path` if its parent is there, and holds it: kFailedPrecondition
  // while another process does.
  static absl::StatusOr<std::unique_ptr<TargetDir>> Open(
      const std::string& path, const StorageOptions& storage, Clock& clock);

  // Of a directory that another rank has begun for this record, when it is seen
  // here.
  static absl::StatusOr<std::unique_ptr<TargetDir>> Join(
      const std::string& path, const StorageOptions& storage,
      const ConversionRecord& record, Clock& clock);

  enum class State {
    kEmpty,
    kBegun,
    kComplete,  // the manifest is there; the record may be
  };
  // `wanted`: of this call; gets the run id of what is there. Everything else
  // that is in the directory is kFailedPrecondition, and says what.
  absl::StatusOr<State> Look(ConversionRecord* wanted);

  // `reserve`: take the files' space now, which may take long.
  // kResourceExhausted before anything is written when it cannot fit.
  // kCancelled when `stop` becomes true meanwhile.
  absl::Status Begin(const ConversionRecord& record, const ConvertPlan& plan,
                     bool reserve, const std::atomic<bool>& stop);

  // The rounds whose records are there, whole, and say what can be of this plan
  // and so many items, by number; others are removed. Of coded files only those
  // before the first that is missing.
  absl::StatusOr<std::vector<RoundRecord>> Rounds(const ConvertPlan& plan,
                                                  size_t items, bool coded);
  absl::Status PutRound(const RoundRecord& record);
  absl::Status DropRound(uint32_t round);

  absl::Status Commit(const Manifest& manifest);
  // What a conversion needs and its result does not; nothing else that lies
  // there.
  absl::Status RemoveRecords();

  // The result's manifest, when it is complete.
  absl::StatusOr<Manifest> ReadManifest();
  absl::StatusOr<uint64_t> SizeOfFile(const std::string& name);

  CheckpointId id() const { return id_; }
  // In the storage; "." for its root.
  const std::string& checkpoint_dir() const { return checkpoint_dir_; }
  std::string PathOf(const std::string& name) const;  // of a file, in it
  std::string path() const;  // of the checkpoint's directory, for messages
  const StorageOptions& storage_options() const { return options_; }
  Storage& storage() { return *storage_; }

 private:
  TargetDir(std::string root, StorageOptions options,
            std::unique_ptr<Storage> storage, Clock& clock)
      : root_(std::move(root)),
        options_(std::move(options)),
        storage_(std::move(storage)),
        clock_(clock) {}

  void Name(const ConversionRecord& record);
  absl::Status CheckSpace(const ConvertPlan& plan);
  absl::Status MakeRun(const ConversionRecord& record, int world);
  absl::Status MakeFiles(const ConvertPlan& plan, bool reserve,
                         const std::atomic<bool>& stop);
  absl::Status Refuse(const std::string& why) const;
  // What this storage could not read, and what to do.
  absl::Status UnlessItStays(const absl::Status& status) const;

  const std::string root_;
  const StorageOptions options_;
  const std::unique_ptr<Storage> storage_;
  Clock& clock_;
  Fd lock_;  // on the directory
  bool is_run_ = false;
  CheckpointId id_;
  std::string checkpoint_dir_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_TARGET_DIR_H_

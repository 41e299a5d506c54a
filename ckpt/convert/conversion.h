// ckpt/convert/conversion.h: the threads of a conversion and the rounds that
// they finish. Inside of checkpoint_writer.cc.
//
//   workers   as many as the system gives threads (ckpt/base/threads.h); take
//   windows in the plan's order; sync when a round of theirs is
//             written; take files to finish when all rounds are
//   caller    records rounds that everybody has synced, shows progress
//
// With a codec the next round begins when all of this one is written: where
// units are stored is known only then, and what is recorded must have no holes.

#ifndef HOLDFAST_CKPT_CONVERT_CONVERSION_H_
#define HOLDFAST_CKPT_CONVERT_CONVERSION_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/threads.h"
#include "ckpt/convert/convert_plan.h"
#include "ckpt/convert/convert_record.h"
#include "ckpt/convert/window_worker.h"

namespace holdfast::ckpt {

class Conversion {
 public:
  // All outlive it. `tick` is called by the thread that waits, some times a
  // second.
  Conversion(ConvertShared* shared,
             std::vector<std::unique_ptr<WindowWorker>>* workers,
             std::function<void()> tick);

  // Are the units of these rounds as they were written? The numbers of those
  // that are not.
  absl::StatusOr<std::vector<uint32_t>> Verify(
      const std::vector<uint32_t>& rounds);

  // Writes these rounds; `record` is called for each when it is safe.
  absl::Status Write(const std::vector<uint32_t>& rounds,
                     std::function<absl::Status(RoundRecord)> record);

  absl::StatusOr<std::vector<FinishedFile>> Finish(
      std::function<ShardIdentity(uint32_t file)> identity);

 private:
  struct Round {
    uint32_t number = 0;
    size_t windows_left = 0;
    size_t next_window = 0;
    std::set<size_t> unsynced = {};  // workers
    bool recorded = false;
    std::map<ItemIndex, Digest128> digests = {};
  };

  using Work =
      std::function<absl::Status(size_t worker, const WorkerTurn& turn)>;
  // Runs `work` on the workers, ticks, and returns the first error. `settle` is
  // called after each tick by the thread that ticks, under no lock.
  absl::Status RunThreads(const Work& work,
                          const std::function<absl::Status()>& settle);
  absl::Status WriteWindows(size_t worker, const WorkerTurn& turn);
  // The next window to write, as (index into rounds_, window); none: all are
  // taken, or something has failed.
  std::optional<std::pair<size_t, size_t>> NextWindow();
  void NoteSynced(size_t worker, const std::set<size_t>& rounds);
  RoundRecord RecordOf(const Round& round) const;

  ConvertShared* const shared_;
  std::vector<std::unique_ptr<WindowWorker>>* const workers_;
  const std::function<void()> tick_;

  std::mutex lock_;
  std::condition_variable changed_;
  bool failed_ = false;
  std::vector<Round> rounds_;
  size_t open_round_ = 0;  // the first that has windows to be taken
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_CONVERSION_H_

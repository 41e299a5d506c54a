// ckpt/ckpt_thread.h: the checkpoint thread and the box through which the step
// thread talks to it. Private to ckpt/checkpointer.cc.
//
// The thread owns storage and group from its first line to its last, and drives
// a RankHost. It sleeps when there is nothing to do: in the storage while
// writes are in flight, else on the box.

#ifndef HOLDFAST_CKPT_CKPT_THREAD_H_
#define HOLDFAST_CKPT_CKPT_THREAD_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/checkpointer.h"
#include "ckpt/session/load_staging.h"
#include "ckpt/session/rank_host.h"
#include "ckpt/session/save_plans.h"
#include "ckpt/snapshot/async_copier.h"
#include "ckpt/snapshot/snapshot.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

// Values in both directions, under one lock that is never held across I/O. The
// standard library's lock, because ThreadSanitizer does not see through the
// packaged absl::Mutex. `changed` is for both sides.
struct CkptBox {
  struct Save {
    bool skip = false;
    SaveRequest request;
    absl::Duration begun_at;
  };

  std::mutex lock;  // guards all below
  std::condition_variable changed;
  // To the checkpoint thread.
  std::optional<LoadRequest> load;
  std::deque<Save> saves;  // at most one that is no skip
  bool stop = false;
  // To the step thread.
  std::optional<absl::Status> opened;
  std::optional<absl::StatusOr<LoadReport>> loaded;
  std::deque<SaveReport> reports;
  bool ended = false;  // the thread has let go of storage and group
  bool in_flight = false;
  // A save was reported, but its calls on the storage stay unanswered.
  std::optional<absl::Duration> silent_since;
  absl::Status stop_status;
  SaveCounters counters;

  // When the checkpoint thread last went round its loop, in nanoseconds of the
  // clock: not at all while a system call does not come back. Outside the lock.
  std::atomic<int64_t> alive_at_ns = 0;  // set before the thread starts

  bool HasWork() const { return load.has_value() || !saves.empty() || stop; }
};

// What a job's bytes go through.
struct CkptMemory {
  std::vector<std::span<std::byte>> regions;
  std::span<std::byte> arena;  // the snapshot's
  // The regions are a device's; null: the host's.
  AsyncCopier* copier = nullptr;
};

class CkptThread {
 public:
  // Everything outlives the thread; `group` becomes its own. It does not run
  // yet.
  CkptThread(const CheckpointerOptions& options, std::unique_ptr<Group> group,
             const JobLayout* layout, CkptMemory memory, Clock* clock,
             SavePlans* plans, Snapshot* snapshot, CkptBox* box);
  ~CkptThread();  // box->stop is set, or it was not started

  // Called once. kResourceExhausted: the system refuses a thread.
  absl::Status Start();

  // The thread goes on by itself, this object and all that it uses with it:
  // neither may be destroyed any more.
  void Abandon() { thread_.detach(); }

 private:
  void Run();
  absl::Status OpenStorages();
  void TakeWork();
  void StartLoad(const LoadRequest& request);
  void OpenInit(const LoadRequest& request, OwnerOptions* owner);
  void ReportLoad(const OwnerResult& result);
  void ReportSave(const SaveResult& result);
  void EndSilence();
  void LogRetention(const RetentionOutcome& outcome);
  void Wait();
  bool MayStop();

  const CheckpointerOptions options_;
  std::unique_ptr<Group> group_;
  const JobLayout* const layout_;
  const CkptMemory memory_;
  Clock* const clock_;
  SavePlans* const plans_;
  Snapshot* const snapshot_;
  CkptBox* const box_;

  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Storage> init_storage_;  // of init_from, during the load
  absl::Status init_status_;               // rank 0: why there is none
  std::unique_ptr<LoadStaging> staging_;   // with a copier
  std::unique_ptr<LoadTarget> target_;
  std::unique_ptr<RankHost> host_;
  int polls_in_vain_ = 0;
  bool loading_ = false;
  bool silent_ = false;   // box_->silent_since is set
  bool polling_ = false;  // since the first piece of work
  std::optional<absl::Duration> stop_by_;
  absl::Duration save_begun_at_;
  double save_cpu_at_ = 0;

  std::thread thread_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CKPT_THREAD_H_

// ckpt/checkpointer.h: the face of the checkpoint layer, as a trainer sees it.
//
//   Open -> ClaimAndLoad -> { step; BeginSave; step (FenceWrite ...); PollSave
//   }
//        -> WaitForSave -> Close
//
// A save runs beside training, from the live memory of `regions`: BeginSave
// fixes the state and returns; from then on whoever stores into a region calls
// FenceWrite first. The bytes that were there at BeginSave reach the file, or
// the save fails; training is never stopped for longer than fence_ms.
//
// Regions may lie in a device, where the host cannot touch them: then an
// AsyncCopier comes with them. A save copies the state into the arena first,
// beside the next forward and backward, and is written from there; a load goes
// through the arena the other way. All calls and promises are the same.
//
// Threads: one step thread makes every call here. Open starts the checkpoint
//     thread, which owns storage, group and all sessions, and talks to the step
//     thread through one lock that neither holds across I/O, and the fence.
// Memory: the arena, a few pages for blocks of the file, tables of a few dozen
//     bytes per MiB of state. All of it is taken in Open and by the first save;
//     later saves allocate only on rank 0, for the manifest.
// Cost: without a save in flight FenceWrite is one atomic load.

#ifndef HOLDFAST_CKPT_CHECKPOINTER_H_
#define HOLDFAST_CKPT_CHECKPOINTER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/types.h"
#include "ckpt/group/group.h"
#include "ckpt/layout/holding.h"
#include "ckpt/snapshot/async_copier.h"

namespace holdfast::ckpt {

struct CheckpointerOptions {
  std::string run_dir;  // an existing directory

  // Retention: the newest `keep_last` (at least 1; kKeepAll) committed ones
  // stay, and those whose step is a multiple of `keep_every` (0: none).
  int keep_last = 3;
  int64_t keep_every = 0;
  // One that is at least so many seconds old stays too (and the one that will
  // take its place), for damage to the model that is noticed late. 0: none.
  int64_t keep_older_s = 0;

  // The longest that one FenceWrite holds up the step. Then the save is given
  // up, not the step.
  int64_t fence_ms = 2000;
  // Where units go that the optimizer reaches before the writer. 0: 5 % of the
  // bytes this rank stores, at least 4 MiB; never more than all of them.
  // With a copier: where all units go. 0: all of them at once, so FenceWrite
  // waits for copies only; less: a ring, refilled as units are written. A load
  // needs 4 MiB, so no arena is smaller.
  uint64_t arena_bytes = 0;

  // Deadlines. `begin`: from BeginSave to the first word of rank 0. `vote`:
  // from one's own vote to everybody's, and to the outcome. `io`: with calls
  // unanswered and no answer arriving. `load`: all of ClaimAndLoad.
  int64_t begin_timeout_ms = 60'000;
  int64_t vote_timeout_ms = 120'000;
  int64_t io_timeout_ms = 120'000;
  int64_t load_timeout_ms = 600'000;
  // Close waits this long for a save in flight.
  int64_t close_timeout_ms = 120'000;

  // How many files a checkpoint is. 0: one per rank. -1: one per node, for all
  // consecutive ranks of one host. N: so many (never more than ranks, so that a
  // job may come back smaller), each of as many consecutive ranks. The same on
  // all ranks; not with a codec.
  int64_t files = 0;
  // At most so many files of a checkpoint lie in one directory; when there are
  // more, rank 0 makes directories in the checkpoint's own. 0: any number. The
  // same on all ranks.
  int64_t files_per_dir = 1024;

  // "auto" (io_uring, else POSIX, said once in the log), "io_uring", "posix".
  std::string storage = "auto";
  int queue_depth = 32;   // units in flight
  bool direct_io = true;  // O_DIRECT where the file system allows it
  // "none" or "zstd": units are compressed, as byte planes, on their way to the
  // file (ckpt/format/codec.h has the levels). By so many threads of its own on
  // each rank; 0: by the checkpoint thread.
  std::string codec = "none";
  int codec_level = 0;
  int codec_threads = 0;
  // Faults to inject, for drills and tests (ckpt/storage/fault_storage.h); ""
  // for none.
  std::string fault_spec;

  // What MeasureRawDevice said, for reports on rank 0. 0: unknown.
  double raw_write_bytes_per_s = 0;
  double raw_read_bytes_per_s = 0;

  // Debugging, each at a cost. Protect: pages of a save in flight are read-only
  // until FenceWrite frees them, so a store without the fence dies by SIGSEGV;
  // not with a copier.
  // Recheck: each unit's checksum is taken again after its write, so such a
  // store fails the save.
  bool protect_unreleased = false;
  bool recheck_after_write = false;
};

// What the step thread wants of the past.
struct LoadRequest {
  enum class Resume {
    kAuto,      // the newest whole checkpoint; an empty run starts fresh
    kNever,     // start fresh, whatever is there
    kRequired,  // kNotFound rather than start fresh
    kStep,      // the newest at or below `step`; what is newer is superseded
    kClaim,     // as kAuto, but nothing is loaded and nothing compared: the
                // regions stay, and the next save goes on from that checkpoint.
                // Any items; `validate` is not asked, init_from must be ""
  };
  Resume resume = Resume::kAuto;
  int64_t step = 0;

  // When the run is fresh: a run directory ("RUN", "RUN@STEP") or a checkpoint
  // directory to take the state from. "" for none.
  std::string init_from;
  bool init_weights_only = false;  // items of kind "weight", the rest untouched

  // Says whether this job can continue from a checkpoint with these attributes:
  // OK, or the status that ClaimAndLoad shall return on every rank
  // (kFailedPrecondition and what differs). Not asked where only weights are
  // taken. Called in the checkpoint thread while the caller of ClaimAndLoad
  // waits. Null: anything goes.
  std::function<absl::Status(const std::map<std::string, std::string>&)>
      validate;

  // Must be equal on all ranks (instruction set, versions, flags, numbers of
  // the run); else kFailedPrecondition names the rank that differs.
  std::string fingerprint;

  // How the caller knows that this run has committed before, such as
  // "journal.jsonl says that step 120 was saved"; "" when it does not. A run
  // that has lost all its checkpoints then is kNotFound, not fresh.
  std::string committed_proof;
};

struct SteppedOver {
  CheckpointId id;
  std::string reason;  // "rewind", "damaged: ..."
};

struct LoadReport {
  bool loaded = false;     // false: fresh, the regions are untouched
  bool from_init = false;  // loaded by init_from, not from this run
  bool claimed = false;    // `id` and `step` are the run's newest, by kClaim
  CheckpointId id;
  int64_t step = 0;
  std::map<std::string, std::string> attributes;
  std::string layout_from;   // "tp2-pp2-dp2"
  uint32_t incarnation = 0;  // this job's number in the run
  RunId run_id{};
  uint64_t bytes_read = 0;  // by this rank
  // By messages, from ranks that had read them for this one too.
  uint64_t bytes_received = 0;
  // Rank 0: read and received by the whole job, and what the checkpoint's files
  // have of what was taken.
  uint64_t job_bytes_read = 0;
  uint64_t job_bytes_received = 0;
  uint64_t bytes_stored = 0;
  double seconds = 0;      // of this rank's reading; 0 when fresh
  double bytes_per_s = 0;  // bytes_read / seconds
  // bytes_per_s as a share of raw_read_bytes_per_s, 0: unknown. Ranks that read
  // from one device at the same time share it: their sum is the device's.
  double raw_share = 0;
  std::vector<SteppedOver> stepped_over;
};

struct SaveRequest {
  int64_t step = 0;
  // Kept in the manifest as they are; rank 0's count. Names that start with '.'
  // are facts of the save, outside the state's digest.
  std::map<std::string, std::string> attributes;
  // Called by BeginSave once it is certain that this save begins, before the
  // state is fixed: the time to bring regions up to date that are copies of
  // other memory. No save is in flight then. Null: nothing to do.
  std::function<void()> prepare = nullptr;
};

struct SaveReport {
  enum class Outcome {
    kCommitted,  // durable: the checkpoint exists
    kAborted,    // another rank failed, was missing, or had no time
    kFailed,     // this rank failed
    kUnknown,    // perhaps committed; the next start will see
    kSkipped,    // another rank was still busy with the save before
  };
  CheckpointId id;
  int64_t step = 0;
  Outcome outcome = Outcome::kFailed;
  absl::Status status;       // OK exactly when committed
  uint64_t bytes = 0;        // of this rank's file
  uint64_t bytes_total = 0;  // of all files; rank 0 only
  double seconds = 0;        // BeginSave to the outcome
  double write_seconds = 0;  // first write submitted to data synced
  double bytes_per_s = 0;    // bytes / write_seconds
  // All ranks' bytes over `seconds`, as a share of raw_write_bytes_per_s; rank
  // 0 only, 0: unknown. With several hosts it can exceed 1.
  double raw_share = 0;
  uint64_t bytes_copied = 0;      // through the arena
  double fence_wait_ms = 0;       // the step thread in FenceWrite: waits
  double fence_copy_ms = 0;       // and copies
  double thread_cpu_seconds = 0;  // of the checkpoint thread, for this save
};

// "committed", "aborted", "failed", "unknown", "skipped"
std::string_view NameOf(SaveReport::Outcome outcome);

struct SaveCounters {
  int64_t committed = 0;
  int64_t failed = 0;  // neither committed nor skipped
  // Since the last commit. Counts on while a storage that answers nothing keeps
  // the next save from beginning: one for each io_timeout_ms.
  int64_t failed_in_a_row = 0;
  int64_t skipped = 0;             // refused by BeginSave, or kSkipped
  int64_t last_durable_step = -1;  // -1: none, loaded ones included
};

// What a plain loop moves, in bytes a second.
struct RawDevice {
  double write_bytes_per_s = 0;  // its sync included
  // 0: unknown, since the file system refuses O_DIRECT and only its cache would
  // be measured.
  double read_bytes_per_s = 0;
};
// Of `dir`, measured now in less than a second with up to 64 MiB that are
// removed again. For one rank, while the others move nothing.
absl::StatusOr<RawDevice> MeasureRawDevice(const std::string& dir);

class Checkpointer {
 public:
  // Every rank of `group` opens with the same layout and options. `regions` are
  // the memory that the layout's holdings name; page aligned; they outlive the
  // Checkpointer. Reads no checkpoint and writes nothing.
  //
  // `copier`: the regions are a device's, and are reached through it alone; it
  // outlives the Checkpointer. Null: the host's memory.
  //
  // kInvalidArgument: regions or options do not fit the layout; says which.
  // kResourceExhausted: the copier has no memory for the arena.
  // kUnavailable, kPermissionDenied: the run directory cannot be used.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Open(
      const CheckpointerOptions& options, std::unique_ptr<Group> group,
      std::shared_ptr<const JobLayout> layout,
      std::vector<std::span<std::byte>> regions, Clock& clock,
      AsyncCopier* copier = nullptr);

  virtual ~Checkpointer() = default;

  // Takes the run for this job, agrees with all ranks on a checkpoint and
  // fills the regions with it. Once, before the first save; all ranks call it.
  // Blocks. Codes: DESIGN section 7 (kNotFound: no whole checkpoint and a fresh
  // start is not allowed).
  virtual absl::StatusOr<LoadReport> ClaimAndLoad(
      const LoadRequest& request) = 0;

  // Starts to save what the regions hold now. All ranks call it between the
  // same two steps, and steps never go back. Returns at once.
  //
  // kUnavailable: a save is in flight; this one is skipped and counted. A rank
  // that skips makes the others' attempt at the same step fail, soon.
  virtual absl::Status BeginSave(const SaveRequest& request) = 0;

  // The step thread is about to store into these bytes. Returns when it may:
  // at once, after a copy, or after at most fence_ms. Never fails: what is in
  // danger is the save, and the save knows.
  virtual void FenceWrite(uint32_t region, uint64_t offset, uint64_t bytes) = 0;

  // The report of a save that has ended, once.
  virtual std::optional<SaveReport> PollSave() = 0;
  virtual bool save_in_flight() const = 0;

  // Blocks until there is a report, the save in flight has ended or `timeout`
  // has passed; then as PollSave. nullopt at once when there is neither a save
  // nor a report.
  virtual std::optional<SaveReport> WaitForSave(absl::Duration timeout) = 0;

  virtual SaveCounters counters() const = 0;

  // The fixed memory that Open took for copies.
  virtual uint64_t arena_bytes() const = 0;

  // Waits for the save in flight and for retention (close_timeout_ms), stops
  // the thread, closes the storage. The first error of these; its codes are
  // those of the save. Call it once; nothing else may follow.
  //
  // kDeadlineExceeded: something was not over. When the thread itself hangs in
  // a call on the storage it is left behind, with the regions: the process must
  // end.
  virtual absl::Status Close() = 0;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CHECKPOINTER_H_

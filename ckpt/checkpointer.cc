// ckpt/checkpointer.cc: the step thread's side of the face; the other side is
// ckpt/ckpt_thread.cc.

#include "ckpt/checkpointer.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/ckpt_thread.h"
#include "ckpt/format/codec.h"
#include "ckpt/session/load_staging.h"
#include "ckpt/session/save_plans.h"
#include "ckpt/snapshot/fence.h"
#include "ckpt/snapshot/staged_snapshot.h"
#include "ckpt/storage/raw_speed.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {
namespace {

constexpr int kQueueDepthMax = 4000;
constexpr int64_t kFilesPerDirMax = 1'000'000;
// What the checkpoint thread may take to end when it has been told to: its
// group gives the last messages a second.
constexpr absl::Duration kEndGrace = absl::Seconds(2);
// Between two looks at a thread that may hang.
constexpr absl::Duration kHungPoll = absl::Milliseconds(200);
// Longer waits would overflow the clock of the standard library.
constexpr absl::Duration kForever = absl::Hours(24 * 365);

// More is a slip of the pen, and sums of timeouts must not overflow.
constexpr int64_t kTimeoutMaxMs = int64_t{30} * 24 * 3600 * 1000;

absl::Status CheckOptions(const CheckpointerOptions& options) {
  const auto at_least = [](const char* name, int64_t value, int64_t least) {
    if (value >= least) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is %d; it must be at least %d", name, value, least));
  };
  HF_RETURN_IF_ERROR(at_least("checkpoint.keep_last", options.keep_last, 1));
  HF_RETURN_IF_ERROR(at_least("checkpoint.keep_every", options.keep_every, 0));
  HF_RETURN_IF_ERROR(
      at_least("checkpoint.keep_older_s", options.keep_older_s, 0));
  HF_RETURN_IF_ERROR(
      at_least("checkpoint.files_per_dir", options.files_per_dir, 0));
  if (options.files_per_dir > kFilesPerDirMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("checkpoint.files_per_dir is %d; it must be at most %d",
                        options.files_per_dir, kFilesPerDirMax));
  }
  HF_RETURN_IF_ERROR(at_least("checkpoint.files", options.files, -1));
  if (options.files != 0 && options.codec != "none") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint.codec is '%s' and checkpoint.files is not per_rank: files "
        "that ranks share are not compressed; use codec none or one file a "
        "rank",
        options.codec));
  }
  HF_RETURN_IF_ERROR(at_least("checkpoint.fence_ms", options.fence_ms, 0));
  HF_RETURN_IF_ERROR(at_least("the queue depth", options.queue_depth, 1));
  if (options.queue_depth > kQueueDepthMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the queue depth is %d; it must be at most %d",
                        options.queue_depth, kQueueDepthMax));
  }
  if (options.codec != "none" && options.codec != kZstdName) {
    return absl::InvalidArgumentError(
        absl::StrFormat("checkpoint.codec is '%s'; it must be none or %s",
                        options.codec, kZstdName));
  }
  if (options.codec_level < kZstdLevelMin ||
      options.codec_level > ZstdLevelMax()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint.codec_level is %d; it must be from %d to %d",
        options.codec_level, kZstdLevelMin, ZstdLevelMax()));
  }
  HF_RETURN_IF_ERROR(
      at_least("checkpoint.codec_threads", options.codec_threads, 0));
  for (const int64_t timeout :
       {options.begin_timeout_ms, options.vote_timeout_ms,
        options.io_timeout_ms, options.load_timeout_ms,
        options.close_timeout_ms}) {
    HF_RETURN_IF_ERROR(at_least("a checkpoint timeout in ms", timeout, 1));
    if (timeout > kTimeoutMaxMs) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a checkpoint timeout is %d ms; it must be at most %d, 30 days",
          timeout, kTimeoutMaxMs));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRegions(const JobLayout& layout, const Group& group,
                          std::span<const std::span<std::byte>> regions) {
  if (layout.world() != group.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the layout is for %d ranks, the group has %d",
                        layout.world(), group.size()));
  }
  const Holding holding = layout.StoredBy(group.rank());
  if (regions.size() != holding.region_bytes.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rank %d has %d regions, its layout names %d", Index(group.rank()),
        regions.size(), holding.region_bytes.size()));
  }
  for (size_t i = 0; i < regions.size(); ++i) {
    if (regions[i].size() < holding.region_bytes[i] ||
        reinterpret_cast<uintptr_t>(regions[i].data()) % kStorageAlignment !=
            0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "rank %d: region %d has %d bytes at %p; the layout wants %d bytes "
          "from a multiple of %d",
          Index(group.rank()), i, regions[i].size(),
          static_cast<const void*>(regions[i].data()), holding.region_bytes[i],
          kStorageAlignment));
    }
  }
  return absl::OkStatus();
}

// What the checkpoint thread uses. It is given up to a thread that hangs.
struct Job {
  Job(const CheckpointerOptions& options,
      std::shared_ptr<const JobLayout> layout_in, const Group& group)
      : layout(std::move(layout_in)),
        plans(layout.get(), group.rank(),
              static_cast<uint32_t>(options.files_per_dir),
              GroupsOf(group, options.files)) {}

  // Afterwards `snapshot` is there.
  absl::Status TakeMemory(const CheckpointerOptions& options,
                          const std::vector<std::span<std::byte>>& regions,
                          AsyncCopier* copier_in, Clock& clock) {
    copier = copier_in;
    if (copier == nullptr) {
      auto fence = std::make_unique<Fence>(
          plans.SnapshotUnits(), regions, clock,
          FenceOptions{.arena_bytes = options.arena_bytes,
                       .protect = options.protect_unreleased});
      arena = fence->arena();
      snapshot = std::move(fence);
      return absl::OkStatus();
    }
    std::vector<SnapshotUnit> units = plans.SnapshotUnits();
    CopyPlan copies = PlanCopies(units, options.arena_bytes);
    HF_ASSIGN_OR_RETURN(
        arena, copier->TakeMemory(
                   std::max(copies.arena_bytes, LoadStaging::kBytesMin)));
    snapshot = std::make_unique<StagedSnapshot>(
        std::move(units), regions.size(), std::move(copies), arena, *copier,
        clock);
    return absl::OkStatus();
  }

  const std::shared_ptr<const JobLayout> layout;
  SavePlans plans;
  AsyncCopier* copier = nullptr;
  std::unique_ptr<Snapshot> snapshot;
  std::span<std::byte> arena;  // the snapshot's
  CkptBox box;
  std::unique_ptr<CkptThread> thread;
  Job* next_given_up = nullptr;
};

class ThreadedCheckpointer final : public Checkpointer {
 public:
  ThreadedCheckpointer(const CheckpointerOptions& options,
                       std::unique_ptr<Group> group,
                       std::vector<std::span<std::byte>> regions, Clock& clock,
                       std::unique_ptr<Job> job)
      : options_(options),
        clock_(clock),
        job_(std::move(job)),
        snapshot_(*job_->snapshot),
        box_(job_->box) {
    box_.alive_at_ns = absl::ToInt64Nanoseconds(clock.Monotonic());
    job_->thread = std::make_unique<CkptThread>(
        options, std::move(group), job_->layout.get(),
        CkptMemory{std::move(regions), job_->arena, job_->copier}, &clock,
        &job_->plans, job_->snapshot.get(), &job_->box);
    const absl::Status started = job_->thread->Start();
    if (started.ok()) return;
    // Nobody else uses the box, and there is nothing to close.
    box_.opened = started;
    closed_ = true;
  }

  ~ThreadedCheckpointer() override {
    if (closed_) return;
    const absl::Status status = Close();
    if (!status.ok()) HF_LOG_ERROR("%s", std::string(status.message()));
  }

  absl::Status AwaitOpen() {
    std::unique_lock lock(box_.lock);
    while (!box_.opened.has_value()) {
      box_.changed.wait_for(lock, absl::ToChronoNanoseconds(kHungPoll),
                            [this] { return box_.opened.has_value(); });
      if (!box_.opened.has_value() && Hung(options_.load_timeout_ms)) {
        return HungStatus("opening the run directory");
      }
    }
    return *box_.opened;
  }

  absl::StatusOr<LoadReport> ClaimAndLoad(const LoadRequest& request) override {
    std::unique_lock lock(box_.lock);
    HF_CHECK(!claimed_, "ClaimAndLoad is called once");
    claimed_ = true;
    if (job_->copier != nullptr) job_->copier->Fix();
    box_.load = request;
    box_.changed.notify_all();
    while (!box_.loaded.has_value()) {
      box_.changed.wait_for(lock, absl::ToChronoNanoseconds(kHungPoll),
                            [this] { return box_.loaded.has_value(); });
      if (!box_.loaded.has_value() && Hung(options_.load_timeout_ms)) {
        return HungStatus("starting");
      }
    }
    owned_ = box_.loaded->ok();
    return *std::move(box_.loaded);
  }

  absl::Status BeginSave(const SaveRequest& request) override {
    if (!owned_) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "saving step %d: this job does not own the run", request.step));
    }
    CkptBox::Save save{false, request, clock_.Monotonic()};
    std::unique_lock lock(box_.lock);
    if (box_.in_flight) {
      save.skip = true;
      box_.saves.push_back(std::move(save));
      box_.changed.notify_all();
      ++box_.counters.skipped;
      return absl::UnavailableError(absl::StrFormat(
          "saving step %d: skipped, the save before is still in flight",
          request.step));
    }
    if (request.prepare != nullptr) {
      // Only this thread sets in_flight, so it stays false meanwhile.
      lock.unlock();
      request.prepare();
      lock.lock();
    }
    snapshot_.Arm();
    box_.in_flight = true;
    box_.saves.push_back(std::move(save));
    box_.changed.notify_all();
    return absl::OkStatus();
  }

  void FenceWrite(uint32_t region, uint64_t offset, uint64_t bytes) override {
    if (!snapshot_.armed()) return;
    BlockingWrite(snapshot_, clock_, absl::Milliseconds(options_.fence_ms),
                  region, offset, bytes);
  }

  std::optional<SaveReport> PollSave() override {
    const std::lock_guard lock(box_.lock);
    return TakeReport();
  }

  bool save_in_flight() const override {
    const std::lock_guard lock(box_.lock);
    return box_.in_flight;
  }

  std::optional<SaveReport> WaitForSave(absl::Duration timeout) override {
    std::unique_lock lock(box_.lock);
    box_.changed.wait_for(
        lock, absl::ToChronoNanoseconds(std::min(timeout, kForever)),
        [this] { return !box_.in_flight || !box_.reports.empty(); });
    return TakeReport();
  }

  uint64_t arena_bytes() const override { return job_->arena.size(); }

  SaveCounters counters() const override {
    const std::lock_guard lock(box_.lock);
    SaveCounters counters = box_.counters;
    counters.failed_in_a_row += SilentPeriods();
    return counters;
  }

  absl::Status Close() override {
    HF_CHECK(!closed_, "a checkpointer is closed once");
    closed_ = true;
    {
      std::unique_lock lock(box_.lock);
      box_.stop = true;
      box_.changed.notify_all();
      absl::Duration patience = kEndGrace;
      if (!Hung(options_.io_timeout_ms))
        patience += absl::Milliseconds(options_.close_timeout_ms);
      box_.changed.wait_for(
          lock, absl::ToChronoNanoseconds(std::min(patience, kForever)),
          [this] { return box_.ended; });
      if (!box_.ended) {
        // Nobody can take it back from the storage. What it uses stays, where
        // leak checkers find it.
        static std::atomic<Job*> given_up = nullptr;
        Job* const job = job_.release();
        job->thread->Abandon();
        job->next_given_up = given_up.exchange(job);
        return HungStatus("closing the checkpointer");
      }
    }
    job_->thread.reset();
    const std::lock_guard lock(box_.lock);
    HF_RETURN_IF_ERROR(box_.stop_status);
    for (const SaveReport& report : box_.reports) {
      if (report.outcome != SaveReport::Outcome::kSkipped) {
        HF_RETURN_IF_ERROR(report.status);
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Duration NotAliveFor() const {
    return clock_.Monotonic() -
           absl::Nanoseconds(box_.alive_at_ns.load(std::memory_order_relaxed));
  }
  // One call on the storage has kept the checkpoint thread for so long.
  bool Hung(int64_t timeout_ms) const {
    return NotAliveFor() > absl::Milliseconds(timeout_ms);
  }
  absl::Status HungStatus(const char* doing) const {
    return absl::DeadlineExceededError(absl::StrFormat(
        "%s: the checkpoint thread has not come back from the storage under %s "
        "for %s; it is left behind, the process must end",
        doing, options_.run_dir, absl::FormatDuration(NotAliveFor())));
  }

  // How often the storage could have answered and did not, while a save waits.
  // The lock is held.
  int64_t SilentPeriods() const {
    if (!box_.in_flight) return 0;
    const absl::Duration alive =
        absl::Nanoseconds(box_.alive_at_ns.load(std::memory_order_relaxed));
    const absl::Duration since =
        std::min(alive, box_.silent_since.value_or(alive));
    return (clock_.Monotonic() - since) /
           absl::Milliseconds(options_.io_timeout_ms);
  }

  // The lock is held.
  std::optional<SaveReport> TakeReport() {
    if (box_.reports.empty()) return std::nullopt;
    SaveReport report = std::move(box_.reports.front());
    box_.reports.pop_front();
    return report;
  }

  const CheckpointerOptions options_;
  Clock& clock_;
  bool claimed_ = false;
  bool owned_ = false;
  bool closed_ = false;
  std::unique_ptr<Job> job_;
  Snapshot& snapshot_;
  CkptBox& box_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::Open(
    const CheckpointerOptions& options, std::unique_ptr<Group> group,
    std::shared_ptr<const JobLayout> layout,
    std::vector<std::span<std::byte>> regions, Clock& clock,
    AsyncCopier* copier) {
  HF_RETURN_IF_ERROR(CheckOptions(options));
  if (copier != nullptr && options.protect_unreleased) {
    return absl::InvalidArgumentError(
        "protect_unreleased closes pages of the host's memory; the regions are "
        "a device's");
  }
  HF_RETURN_IF_ERROR(CheckRegions(*layout, *group, regions));
  auto job = std::make_unique<Job>(options, std::move(layout), *group);
  HF_RETURN_IF_ERROR(job->TakeMemory(options, regions, copier, clock));
  auto checkpointer = std::make_unique<ThreadedCheckpointer>(
      options, std::move(group), std::move(regions), clock, std::move(job));
  HF_RETURN_IF_ERROR(checkpointer->AwaitOpen());
  return checkpointer;
}

absl::StatusOr<RawDevice> MeasureRawDevice(const std::string& dir) {
  RawSpeedOptions options;
  options.bytes_max = uint64_t{64} << 20;
  HF_ASSIGN_OR_RETURN(const RawSpeed speed, MeasureRawSpeed(dir, options));
  return RawDevice{speed.write_bytes_per_s, speed.read_bytes_per_s};
}

std::string_view NameOf(SaveReport::Outcome outcome) {
  using Outcome = SaveReport::Outcome;
  switch (outcome) {
    case Outcome::kCommitted:
      return "committed";
    case Outcome::kAborted:
      return "aborted";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kUnknown:
      return "unknown";
    case Outcome::kSkipped:
      return "skipped";
  }
  return "?";
}

}  // namespace holdfast::ckpt

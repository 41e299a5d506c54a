// ckpt/ckpt_thread.cc: see ckpt_thread.h.

#include "ckpt/ckpt_thread.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/log.h"
#include "ckpt/base/start_thread.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/session/catalog_locate.h"
#include "ckpt/storage/open_storage.h"

namespace holdfast::ckpt {
namespace {

// While nothing is going on: late messages of ranks that are slower.
constexpr absl::Duration kIdleNap = absl::Milliseconds(10);
// While messages are awaited.
constexpr absl::Duration kMessageNap = absl::Microseconds(200);
// While messages are on their way: then as if there were none. Some
// milliseconds.
constexpr int kPollsInVainMax = 2000;
// While the storage works. It wakes the thread at each answer.
constexpr int kStorageWaitMs = 1;
// Reports that nobody has polled.
constexpr size_t kReportsMax = 64;
// A directory that is in no checkpoint.
constexpr char kInitNotFound[] = "init-from-was-not-found";

double ThreadCpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

RunId RandomRunId() {
  std::random_device device;
  RunId id;
  for (uint8_t& byte : id) byte = static_cast<uint8_t>(device());
  return id;
}

uint64_t RandomNonce() {
  std::random_device device;
  const uint64_t high = device();
  // Never 0.
  return high << 32 | device() | 1;
}

ResumeMode ModeOf(LoadRequest::Resume resume) {
  switch (resume) {
    case LoadRequest::Resume::kAuto:
      return ResumeMode::kAuto;
    case LoadRequest::Resume::kNever:
      return ResumeMode::kNever;
    case LoadRequest::Resume::kRequired:
      return ResumeMode::kRequired;
    case LoadRequest::Resume::kStep:
      return ResumeMode::kStep;
    case LoadRequest::Resume::kClaim:
      return ResumeMode::kClaim;
  }
  return ResumeMode::kAuto;
}

SaveReport::Outcome OutcomeOf(SaveOutcome outcome) {
  switch (outcome) {
    case SaveOutcome::kCommitted:
      return SaveReport::Outcome::kCommitted;
    case SaveOutcome::kAborted:
      return SaveReport::Outcome::kAborted;
    case SaveOutcome::kFailed:
      return SaveReport::Outcome::kFailed;
    case SaveOutcome::kUnknown:
      return SaveReport::Outcome::kUnknown;
    case SaveOutcome::kSkipped:
      return SaveReport::Outcome::kSkipped;
  }
  return SaveReport::Outcome::kFailed;
}

SaveHostOptions HostOptions(const CheckpointerOptions& options) {
  SaveHostOptions host;
  host.save.begin_timeout = absl::Milliseconds(options.begin_timeout_ms);
  // Rank 0 counts from its own vote; whoever is faster than rank 0 waits for
  // rank 0's writes too, and for those of the ranks that share its file.
  host.save.outcome_timeout = absl::Milliseconds((options.files == 0 ? 2 : 3) *
                                                     options.vote_timeout_ms +
                                                 options.io_timeout_ms);
  host.save.coordinator.vote_timeout =
      absl::Milliseconds(options.vote_timeout_ms);
  host.save.coordinator.io_timeout = absl::Milliseconds(options.io_timeout_ms);
  host.save.coordinator.settle_timeout =
      std::min(absl::Seconds(5), absl::Milliseconds(options.io_timeout_ms));
  host.save.writer.io_timeout = absl::Milliseconds(options.io_timeout_ms);
  host.save.writer.create_patience =
      absl::Milliseconds(options.begin_timeout_ms) / 2;
  host.save.writer.recheck = options.recheck_after_write;
  if (options.codec == kZstdName) host.save.writer.codec = Codec::kZstd;
  host.save.writer.codec_level = options.codec_level;
  host.save.writer.codec_threads = options.codec_threads;
  host.retention.keep_last = options.keep_last;
  host.retention.keep_every = options.keep_every;
  host.retention.keep_older_s = options.keep_older_s;
  return host;
}

}  // namespace

CkptThread::CkptThread(const CheckpointerOptions& options,
                       std::unique_ptr<Group> group, const JobLayout* layout,
                       CkptMemory memory, Clock* clock, SavePlans* plans,
                       Snapshot* snapshot, CkptBox* box)
    : options_(options),
      group_(std::move(group)),
      layout_(layout),
      memory_(std::move(memory)),
      clock_(clock),
      plans_(plans),
      snapshot_(snapshot),
      box_(box) {}

CkptThread::~CkptThread() {
  if (thread_.joinable()) thread_.join();
}

absl::Status CkptThread::Start() {
  HF_ASSIGN_OR_RETURN(thread_,
                      StartThread("the checkpoints", [this] { Run(); }));
  return absl::OkStatus();
}

void CkptThread::Run() {
  const absl::Status opened = OpenStorages();
  {
    const std::lock_guard lock(box_->lock);
    box_->opened = opened;
    box_->changed.notify_all();
  }
  if (opened.ok()) {
    while (true) {
      box_->alive_at_ns.store(absl::ToInt64Nanoseconds(clock_->Monotonic()),
                              std::memory_order_relaxed);
      TakeWork();
      if (MayStop()) break;
      // Before the first piece of work messages wait where they are: the
      // sessions that they are for do not exist yet.
      const bool progress = polling_ && host_->Poll();
      if (loading_) {
        if (const auto result = host_->TakeOwnerResult()) ReportLoad(*result);
      }
      if (const auto result = host_->saves().TakeResult()) ReportSave(*result);
      EndSilence();
      if (const auto outcome = host_->saves().TakeRetention()) {
        LogRetention(*outcome);
      }
      if (progress) {
        polls_in_vain_ = 0;
      } else {
        Wait();
      }
    }
  }
  // The storage first: calls in flight may use memory of the sessions.
  storage_.reset();
  host_.reset();
  group_.reset();
  const std::lock_guard lock(box_->lock);
  box_->ended = true;
  box_->changed.notify_all();
}

absl::Status CkptThread::OpenStorages() {
  StorageOptions options;
  options.location = options_.run_dir;
  HF_ASSIGN_OR_RETURN(options.backend, ParseStorageBackend(options_.storage));
  options.queue_depth = options_.queue_depth + SaveHost::kOpsMin;
  if (!options_.fault_spec.empty()) options.fault = options_.fault_spec;
  options.rank = Index(group_->rank());
  options.direct_io = options_.direct_io;
  HF_ASSIGN_OR_RETURN(storage_, OpenStorage(options));

  SessionEnv env;
  env.storage = storage_.get();
  env.group = group_.get();
  env.clock = clock_;
  env.ops_max = options.queue_depth;
  host_ =
      std::make_unique<RankHost>(env, plans_, snapshot_, HostOptions(options_));

  // A device's regions are not read or written by the storage.
  std::vector<std::span<std::byte>> buffers;
  if (memory_.copier == nullptr) buffers = memory_.regions;
  buffers.push_back(memory_.arena);
  for (const auto& blocks : host_->saves().blocks()) buffers.push_back(blocks);
  std::erase_if(buffers, [](std::span<std::byte> b) { return b.empty(); });
  storage_->RegisterBuffers(buffers);
  if (memory_.copier != nullptr) {
    staging_ = std::make_unique<LoadStaging>(memory_.copier, memory_.arena,
                                             memory_.regions);
  }
  target_ = std::make_unique<LoadTarget>(memory_.regions, staging_.get());
  return absl::OkStatus();
}

void CkptThread::TakeWork() {
  std::optional<LoadRequest> load;
  std::deque<CkptBox::Save> saves;
  {
    const std::lock_guard lock(box_->lock);
    load = std::exchange(box_->load, std::nullopt);
    saves.swap(box_->saves);
    if (box_->stop && !stop_by_.has_value()) {
      stop_by_ =
          clock_->Monotonic() + absl::Milliseconds(options_.close_timeout_ms);
    }
  }
  if (load.has_value()) StartLoad(*load);
  for (CkptBox::Save& save : saves) {
    if (save.skip) {
      host_->saves().Skip(save.request.step);
      continue;
    }
    save_begun_at_ = save.begun_at;
    save_cpu_at_ = ThreadCpuSeconds();
    host_->saves().Begin(save.request.step, std::move(save.request.attributes));
  }
}

void CkptThread::StartLoad(const LoadRequest& request) {
  OwnerOptions owner;
  owner.resume = ModeOf(request.resume);
  owner.resume_step = request.step;
  owner.run_id_if_new = RandomRunId();
  owner.nonce = RandomNonce();
  owner.pid = getpid();
  owner.mark = MarkOfThisProcess();
  owner.fingerprint = request.fingerprint;
  owner.save_options = absl::StrFormat("files=%d files_per_dir=%d",
                                       options_.files, options_.files_per_dir);
  owner.committed_proof = request.committed_proof;
  owner.validate = request.validate;
  owner.hello_timeout = absl::Milliseconds(options_.begin_timeout_ms);
  owner.load_timeout = absl::Milliseconds(options_.load_timeout_ms);
  if (!request.init_from.empty()) OpenInit(request, &owner);
  host_->Claim(layout_, target_.get(), std::move(owner));
  loading_ = polling_ = true;
}

// Rank 0 finds out what is meant and tells the others the directory below the
// root, which is the path before '@' for every way of writing it. A place that
// is not there is no error unless the run is fresh and needs it; the owner
// session then fails on its first look, on all ranks.
void CkptThread::OpenInit(const LoadRequest& request, OwnerOptions* owner) {
  StorageOptions options;
  const absl::StatusOr<StorageBackend> backend =
      ParseStorageBackend(options_.storage);
  if (backend.ok()) options.backend = *backend;
  options.fault = "";
  owner->init_weights_only = request.init_weights_only;
  owner->init_dir = kInitNotFound;
  if (group_->rank() == Rank{0}) {
    absl::StatusOr<LocatedCheckpoint> place =
        LocateCheckpoint(request.init_from, options, *clock_);
    init_status_ = place.status();
    if (place.ok()) {
      owner->init_dir = place->dir;
      init_storage_ = std::move(place->storage);
    }
  } else {
    // A directory whose name has an '@' is meant as it stands.
    options.location = request.init_from;
    std::error_code error;
    if (!std::filesystem::is_directory(request.init_from, error)) {
      options.location.resize(
          std::min(options.location.rfind('@'), options.location.size()));
    }
    absl::StatusOr<std::unique_ptr<Storage>> opened = OpenStorage(options);
    if (opened.ok()) {
      init_storage_ = *std::move(opened);
    } else {
      HF_LOG_WARNING("--init-from=%s: %s", request.init_from,
                     std::string(opened.status().message()));
      return;
    }
  }
  SessionEnv env;
  env.storage = init_storage_ != nullptr ? init_storage_.get() : storage_.get();
  env.group = group_.get();
  env.clock = clock_;
  env.space = RankHost::kInitSpace;
  env.ops_max = std::min<size_t>(16, env.storage->queue_depth() / 2);
  owner->init_env = env;
  host_->PollAlso(init_storage_.get());
}

void CkptThread::ReportLoad(const OwnerResult& result) {
  loading_ = false;
  host_->PollAlso(nullptr);
  init_storage_.reset();
  for (const std::string& note : result.notes) HF_LOG_WARNING("%s", note);
  const std::lock_guard lock(box_->lock);
  box_->changed.notify_all();
  if (!result.status.ok()) {
    box_->loaded = result.status;
    if (!init_status_.ok() &&
        absl::StrContains(result.status.message(), kInitNotFound)) {
      // Rank 0 knows better why there is no such directory.
      box_->loaded =
          absl::Status(result.status.code(),
                       absl::StrFormat("--init-from: %s",
                                       std::string(init_status_.message())));
    }
    return;
  }
  LoadReport report;
  report.incarnation = result.incarnation;
  report.run_id = result.run_id;
  report.bytes_read = result.bytes_read;
  report.bytes_received = result.bytes_received;
  report.job_bytes_read = result.job_bytes_read;
  report.job_bytes_received = result.job_bytes_received;
  report.bytes_stored = result.bytes_stored;
  report.seconds = result.load_seconds;
  if (report.seconds > 0) {
    report.bytes_per_s = report.bytes_read / report.seconds;
  }
  if (options_.raw_read_bytes_per_s > 0) {
    report.raw_share = report.bytes_per_s / options_.raw_read_bytes_per_s;
  }
  if (result.loaded.has_value()) {
    report.loaded = true;
    report.from_init = result.loaded->from_init;
    report.id = result.loaded->id;
    report.step = result.loaded->id.step;
    report.attributes = result.loaded->attributes;
    report.layout_from = result.loaded->layout;
  } else if (result.claimed.has_value()) {
    report.claimed = true;
    report.id = *result.claimed;
    report.step = result.claimed->step;
  }
  if (report.claimed || (report.loaded && !report.from_init)) {
    box_->counters.last_durable_step = report.step;
  }
  for (const SupersededCheckpoint& over : result.stepped_over) {
    report.stepped_over.push_back({over.checkpoint.id, over.reason});
  }
  box_->loaded = std::move(report);
}

void CkptThread::ReportSave(const SaveResult& result) {
  SaveReport report;
  report.id = result.id;
  report.step = result.id.step;
  report.outcome = OutcomeOf(result.outcome);
  report.status = result.status;
  report.bytes = result.bytes;
  report.bytes_total = result.bytes_total;
  report.seconds = absl::ToDoubleSeconds(clock_->Monotonic() - save_begun_at_);
  report.write_seconds = absl::ToDoubleSeconds(result.write_time);
  if (report.write_seconds > 0) {
    report.bytes_per_s = report.bytes / report.write_seconds;
  }
  if (options_.raw_write_bytes_per_s > 0 && report.seconds > 0) {
    report.raw_share =
        report.bytes_total / report.seconds / options_.raw_write_bytes_per_s;
  }
  const FenceCosts costs = snapshot_->costs();
  report.bytes_copied = costs.bytes_copied;
  report.fence_wait_ms = costs.wait_ms;
  report.fence_copy_ms = costs.copy_ms;
  report.thread_cpu_seconds = ThreadCpuSeconds() - save_cpu_at_;

  const std::lock_guard lock(box_->lock);
  SaveCounters& counters = box_->counters;
  if (report.outcome == SaveReport::Outcome::kCommitted) {
    ++counters.committed;
    counters.failed_in_a_row = 0;
    counters.last_durable_step = report.step;
  } else if (report.outcome == SaveReport::Outcome::kSkipped) {
    ++counters.skipped;
  } else {
    ++counters.failed;
    ++counters.failed_in_a_row;
  }
  if (box_->reports.size() == kReportsMax) box_->reports.pop_front();
  box_->reports.push_back(std::move(report));
  if (host_->saves().busy()) {
    box_->silent_since = clock_->Monotonic();
    silent_ = true;
  } else {
    box_->in_flight = false;
  }
  box_->changed.notify_all();
}

// A save that was reported is in flight for as long as its calls are.
void CkptThread::EndSilence() {
  if (!silent_ || host_->saves().busy()) return;
  silent_ = false;
  const std::lock_guard lock(box_->lock);
  box_->silent_since.reset();
  box_->in_flight = false;
  box_->changed.notify_all();
}

void CkptThread::LogRetention(const RetentionOutcome& outcome) {
  for (const CheckpointId& id : outcome.removed) {
    HF_LOG_INFO("retention: removed checkpoint %s", ToString(id));
  }
  for (const CheckpointId& id : outcome.swept) {
    HF_LOG_INFO("retention: swept attempt %s", ToString(id));
  }
  if (!outcome.status.ok()) {
    HF_LOG_WARNING("retention: %s; tried again after the next save",
                   std::string(outcome.status.message()));
  }
}

bool CkptThread::MayStop() {
  if (!stop_by_.has_value()) return false;
  const SaveHost& saves = host_->saves();
  if (!saves.busy() && !saves.retiring() && !loading_) return true;
  if (clock_->Monotonic() < *stop_by_) return false;
  const std::lock_guard lock(box_->lock);
  box_->stop_status = absl::DeadlineExceededError(
      absl::StrFormat("closing the checkpointer: %s is not over after %d ms",
                      loading_       ? "the load"
                      : saves.busy() ? "a save"
                                     : "retention",
                      options_.close_timeout_ms));
  return true;
}

void CkptThread::Wait() {
  const SaveHost& saves = host_->saves();
  // Messages of a megabyte come in parts, each of which needs a poll at both
  // ends; a nap between any two would be most of the time.
  if (loading_ && group_->moving() && polls_in_vain_ < kPollsInVainMax) {
    ++polls_in_vain_;
    sched_yield();
    return;
  }
  const bool for_ranks = loading_ && host_->load_waits_for_ranks();
  if ((loading_ && !for_ranks) || saves.writing()) {
    storage_->WaitForCompletion(kStorageWaitMs);
    return;
  }
  const absl::Duration nap =
      for_ranks || saves.busy() || saves.retiring() ? kMessageNap : kIdleNap;
  std::unique_lock lock(box_->lock);
  box_->changed.wait_for(lock, absl::ToChronoMicroseconds(nap),
                         [this] { return box_->HasWork(); });
}

}  // namespace holdfast::ckpt

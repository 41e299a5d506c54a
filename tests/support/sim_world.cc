// tests/support/sim_world.cc: see sim_world.h.

#include "tests/support/sim_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"

namespace holdfast::tests {

using ckpt::Fragment;
using ckpt::OwnerOptions;
using ckpt::OwnerResult;
using ckpt::Rank;
using ckpt::SaveResult;

namespace {

// Passes over all ranks without any effect before time moves. A pass gives each
// call on the storage a chance to advance, not a certainty.
constexpr int kIdlePasses = 12;
constexpr absl::Duration kFirstJump = absl::Milliseconds(1);
constexpr absl::Duration kLongestJump = absl::Seconds(20);
constexpr absl::Duration kStuckAfter = absl::Hours(1);

std::vector<ckpt::AlignedBuffer> Allocate(const ckpt::Holding& holding) {
  std::vector<ckpt::AlignedBuffer> memory;
  for (const uint64_t bytes : holding.region_bytes) memory.emplace_back(bytes);
  return memory;
}

std::vector<std::span<std::byte>> Spans(
    std::vector<ckpt::AlignedBuffer>& memory) {
  std::vector<std::span<std::byte>> spans;
  for (ckpt::AlignedBuffer& buffer : memory) spans.push_back(buffer.span());
  return spans;
}

}  // namespace

// --- SimRank -----------------------------------------------------------------

SimRank::SimRank(const SimWorldOptions& options, SimDisk& disk, SimClock& clock,
                 SimNetwork& network, const SimLayout* layout, Rank rank,
                 int process)
    : options_(options),
      clock_(clock),
      layout_(layout),
      process_(process),
      storage_(disk, {.process = process, .queue_depth = 64, .clock = &clock}),
      group_(network.Open(rank)),
      memory_(Allocate(layout->StoredBy(rank))),
      regions_(Spans(memory_)),
      stored_(layout->StoredBy(rank)),
      wanted_(layout->WantedBy(rank)),
      plans_(layout, rank, options.files_per_dir,
             ckpt::GroupsOf(*group_, options.files)),
      fence_(std::make_unique<ckpt::Fence>(plans_.SnapshotUnits(), regions_,
                                           clock, options.fence)),
      target_(regions_) {
  ckpt::SessionEnv env;
  env.storage = &storage_;
  env.group = group_.get();
  env.clock = &clock;
  env.ops_max = 12;
  host_ = std::make_unique<ckpt::RankHost>(env, &plans_, fence_.get(),
                                           options.saves);
  // Side by side over the regions, as the plan writes.
  walk_ = stored_.fragments;
  std::stable_sort(
      walk_.begin(), walk_.end(),
      [](const Fragment& a, const Fragment& b) { return a.offset < b.offset; });
  walked_ = walk_.size();
}

void SimRank::Claim(OwnerOptions options) {
  host_->Claim(layout_, &target_, std::move(options));
}

void SimRank::Fill(int64_t step) {
  for (const Fragment& fragment : stored_.fragments) {
    FillFragment(*layout_, fragment, step, regions_);
  }
}

std::string SimRank::Compare(int64_t step) const {
  for (const Fragment& fragment : wanted_.fragments) {
    std::string difference =
        CompareFragment(*layout_, fragment, step, regions_);
    if (!difference.empty()) return difference;
  }
  return "";
}

void SimRank::BeginSave(int64_t step, int turns_until) {
  step_begins_ = step;
  turns_until_begin_ = turns_until;
  saved_.reset();
}

bool SimRank::Turn(SimRandom& random) {
  bool progress = false;
  if (step_begins_.has_value() && turns_until_begin_-- <= 0) {
    const int64_t step = *std::exchange(step_begins_, std::nullopt);
    progress = true;
    if (host_->saves().busy()) {
      host_->saves().Skip(step);
      SaveResult skipped;
      skipped.id.step = step;
      skipped.outcome = ckpt::SaveOutcome::kSkipped;
      skipped.status = absl::UnavailableError("the save before is in flight");
      saved_ = skipped;
    } else {
      Fill(step);
      fence_->Arm();
      host_->saves().Begin(step, {{"step", absl::StrFormat("%d", step)}});
    }
    step_after_ = step + 1;
    walked_ = 0;
  }
  if (walked_ < walk_.size() &&
      static_cast<int>(random.Below(8)) < options_.optimizer_turns) {
    progress |= Walk();
  }
  progress |= host_->Poll();
  if (auto owner = host_->TakeOwnerResult()) {
    owner_ = std::move(owner);
    progress = true;
  }
  if (auto saved = host_->saves().TakeResult()) {
    saved_ = std::move(saved);
    progress = true;
  }
  return progress;
}

// One fragment of the optimizer's walk: it may write, or it waits.
bool SimRank::Walk() {
  const Fragment& fragment = walk_[walked_];
  const uint64_t bytes =
      fragment.count * ckpt::SizeOf(layout_->items()[fragment.item].dtype);
  if (!fence_->TryWrite(fragment.region, fragment.offset, bytes)) {
    if (!waiting_since_.has_value()) waiting_since_ = clock_.Monotonic();
    if (clock_.Monotonic() - *waiting_since_ < options_.fence_wait) {
      return false;
    }
    fence_->Poison(
        absl::ResourceExhaustedError("the optimizer waited too long"));
    HF_CHECK(fence_->TryWrite(fragment.region, fragment.offset, bytes),
             "a poisoned fence holds nobody up");
  }
  waiting_since_.reset();
  FillFragment(*layout_, fragment, step_after_, regions_);
  ++walked_;
  return true;
}

// --- SimJob ------------------------------------------------------------------

bool SimJob::all_dead() const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [](const auto& rank) { return rank == nullptr; });
}

bool SimJob::any_dead() const {
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const auto& rank) { return rank == nullptr; });
}

// --- SimWorld ----------------------------------------------------------------

SimWorld::SimWorld(const SimWorldOptions& options,
                   std::unique_ptr<SimDisk> disk)
    : options_(options), disk_(std::move(disk)), random_(options.seed, 1) {
  options_.disk.seed = options.seed;
  if (disk_ == nullptr) disk_ = std::make_unique<SimDisk>(options_.disk);
}

SimJob& SimWorld::StartJob(int ranks) {
  SimNetworkOptions network = options_.network;
  network.seed = options_.seed * 1000 + ++networks_;
  jobs_.push_back(std::make_unique<SimJob>(SimJob{SimLayout(ranks), {}, {}}));
  SimJob& job = *jobs_.back();
  job.network = std::make_unique<SimNetwork>(ranks, clock_, network);
  for (int rank = 0; rank < ranks; ++rank) {
    job.ranks.push_back(std::make_unique<SimRank>(options_, *disk_, clock_,
                                                  *job.network, &job.layout,
                                                  Rank{rank}, ++processes_));
    if (rank > 0 && options_.slow_sync > absl::ZeroDuration()) {
      job.ranks.back()->storage().SetDelay(SimOp::kSync, options_.slow_sync);
    }
  }
  return job;
}

void SimWorld::BuryTheDead() {
  for (const auto& job : jobs_) {
    for (size_t rank = 0; rank < job->ranks.size(); ++rank) {
      if (job->ranks[rank] == nullptr || !job->ranks[rank]->dead()) continue;
      job->network->Kill(Rank{static_cast<int>(rank)});
      job->ranks[rank].reset();
    }
  }
}

bool SimWorld::TurnOfAll() {
  bool progress = false;
  for (const auto& job : jobs_) {
    if (job->frozen || job->ranks.empty()) continue;
    // As many turns as there are ranks, of ranks that the seed draws: some get
    // several, some none.
    for (size_t turn = 0; turn < job->ranks.size(); ++turn) {
      SimRank* const rank = job->ranks[random_.Below(job->ranks.size())].get();
      if (rank != nullptr && !rank->dead()) progress |= rank->Turn(random_);
    }
  }
  BuryTheDead();
  return progress;
}

bool SimWorld::RunUntil(const std::function<bool()>& done) {
  int idle = 0;
  absl::Duration jump = kFirstJump;
  absl::Duration quiet;
  while (!done()) {
    if (disk_->power_is_off()) {
      BuryTheDead();
      if (done()) return true;
    }
    const int64_t ops = disk_->ops();
    if (TurnOfAll() || disk_->ops() != ops) {
      idle = 0;
      jump = kFirstJump;
      quiet = absl::ZeroDuration();
      continue;
    }
    if (++idle < kIdlePasses) continue;
    idle = 0;
    clock_.Sleep(jump);
    quiet += jump;
    jump = std::min(2 * jump, kLongestJump);
    if (quiet > kStuckAfter) return false;
  }
  return true;
}

absl::Status SimWorld::StatusOf(
    SimJob& job,
    const std::function<std::optional<absl::Status>(SimRank&)>& status) {
  const bool finished = RunUntil([&] {
    return std::all_of(job.ranks.begin(), job.ranks.end(),
                       [&](const auto& rank) {
                         return rank == nullptr || status(*rank).has_value();
                       });
  });
  if (!finished) return absl::InternalError("a rank is stuck for ever");
  for (const auto& rank : job.ranks) {
    if (rank != nullptr) return *status(*rank);
  }
  return absl::AbortedError("every rank is dead");
}

absl::Status SimWorld::Claim(SimJob& job, OwnerOptions options) {
  options.run_id_if_new.fill(7);
  options.nonce = ++nonces_;
  options.canary_ignore_seal = options_.canary_ignore_seal;
  for (const auto& rank : job.ranks) {
    if (rank != nullptr) rank->Claim(options);
  }
  return StatusOf(job, [](SimRank& rank) -> std::optional<absl::Status> {
    if (!rank.owner().has_value()) return std::nullopt;
    return rank.owner()->status;
  });
}

void SimWorld::BeginSave(SimJob& job, int64_t step) {
  for (const auto& rank : job.ranks) {
    if (rank == nullptr) continue;
    rank->BeginSave(step, static_cast<int>(random_.Below(12)));
  }
}

absl::Status SimWorld::Save(SimJob& job, int64_t step) {
  BeginSave(job, step);
  const absl::Status status =
      StatusOf(job, [](SimRank& rank) -> std::optional<absl::Status> {
        if (!rank.saved().has_value() || !rank.stepped()) return std::nullopt;
        return rank.saved()->status;
      });
  return status;
}

void SimWorld::FinishRetention(SimJob& job) {
  RunUntil([&] {
    return job.ranks[0] == nullptr || !job.ranks[0]->host().saves().retiring();
  });
}

void SimWorld::KillAllJobs() {
  for (const auto& job : jobs_) {
    for (auto& rank : job->ranks) {
      if (rank != nullptr) disk_->Kill(rank->process());
    }
  }
  BuryTheDead();
  jobs_.clear();
}

void SimWorld::PowerCycle(uint64_t fate) {
  disk_->PowerCycle(fate);
  BuryTheDead();
  jobs_.clear();
}

absl::StatusOr<int64_t> SimWorld::LoadAndCheck(SimJob& job) {
  const absl::Status status = Claim(job);
  if (!status.ok()) return status;
  std::optional<int64_t> step;
  for (const auto& rank : job.ranks) {
    if (rank == nullptr) continue;
    const OwnerResult& owner = *rank->owner();
    if (!owner.status.ok()) return owner.status;
    for (const ckpt::SupersededCheckpoint& over : owner.stepped_over) {
      // No media fails here, so damage is a broken promise.
      if (over.reason.starts_with("damaged")) {
        return absl::DataLossError(absl::StrFormat(
            "stepped over %s: %s", ToString(over.checkpoint.id), over.reason));
      }
    }
    const int64_t loaded =
        owner.loaded.has_value() ? owner.loaded->id.step : -1;
    if (step.value_or(loaded) != loaded) {
      return absl::InternalError(absl::StrFormat(
          "one rank loaded step %d, another step %d", *step, loaded));
    }
    step = loaded;
    if (loaded < 0) continue;
    const std::string difference = rank->Compare(loaded);
    if (!difference.empty()) return absl::DataLossError(difference);
  }
  if (!step.has_value()) return absl::AbortedError("every rank is dead");
  return *step;
}

absl::StatusOr<int64_t> SimWorld::LoadAndCheck(int ranks) {
  return LoadAndCheck(StartJob(ranks));
}

}  // namespace holdfast::tests

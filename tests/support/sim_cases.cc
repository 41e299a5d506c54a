// tests/support/sim_cases.cc: see sim_cases.h.

#include "tests/support/sim_cases.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "ckpt/session/save_messages.h"
#include "gtest/gtest.h"

namespace holdfast::tests {

using ckpt::SaveOutcome;

namespace {

constexpr Canary kAllCanaries[] = {Canary::kNone,
                                   Canary::kDiskIgnoresSync,
                                   Canary::kDiskIgnoresDirSync,
                                   Canary::kNoFileSync,
                                   Canary::kNoPartSync,
                                   Canary::kNoDirSync,
                                   Canary::kVoteBeforeSync,
                                   Canary::kRetireBeforeCommit,
                                   Canary::kTouchAfterYes,
                                   Canary::kReuseDirectory,
                                   Canary::kIgnoreSeal,
                                   Canary::kReleaseBeforeComplete};

SimWorldOptions WorldOptions(const SimCase& c) {
  SimWorldOptions options;
  options.seed = c.seed;
  options.disk.object_store = c.object_store;
  options.disk.late_ops = c.late_ops;
  // A restart renames what it counts on, and a rename that a power cut may undo
  // on both sides loses it (ckpt/DESIGN.md says what is asked of a file
  // system).
  options.disk.journaled_names = c.story == "recovery";
  options.disk.ignore_file_sync = c.canary == Canary::kDiskIgnoresSync;
  options.disk.ignore_dir_sync = c.canary == Canary::kDiskIgnoresDirSync;
  options.saves.save.writer.canary_no_file_sync =
      c.canary == Canary::kNoFileSync;
  options.saves.save.writer.canary_no_part_sync =
      c.canary == Canary::kNoPartSync;
  options.saves.save.writer.canary_no_dir_sync = c.canary == Canary::kNoDirSync;
  options.saves.retention.keep_last = c.keep_last;
  options.saves.save.canary_vote_before_sync =
      c.canary == Canary::kVoteBeforeSync;
  options.saves.save.canary_remove_after_yes =
      c.canary == Canary::kTouchAfterYes;
  options.saves.canary_reuse_attempt = c.canary == Canary::kReuseDirectory;
  options.saves.canary_retire_before_commit =
      c.canary == Canary::kRetireBeforeCommit;
  options.fence.canary_release_early =
      c.canary == Canary::kReleaseBeforeComplete;
  options.canary_ignore_seal = c.canary == Canary::kIgnoreSeal;
  // One slot in some worlds, plenty in others.
  options.fence.arena_bytes = c.seed % 2 == 0 ? 4096 : 0;
  // Two directories of shards in half of the worlds.
  options.files_per_dir = c.seed / 2 % 2 == 0 ? 2 : 0;
  options.optimizer_turns = 1 + c.seed % 4;
  options.fence.protect = c.seed % 5 == 0;
  // Two fifths of the worlds on file systems have files that ranks share: one,
  // two, or one for the two ranks of each host. Half of the others save coded
  // files. The canaries are about plain ones.
  const bool part_canary = c.canary == Canary::kNoPartSync;
  if (!c.object_store && (c.seed % 5 == 1 || c.seed % 5 == 3 || part_canary)) {
    constexpr int kFiles[] = {2, 1, -1};
    options.files = kFiles[c.seed / 5 % 3];
    // Two files of two ranks are none that they share.
    if (options.files == 2 && c.ranks == 2) options.files = 1;
  } else if (c.seed % 4 >= 2 && c.canary == Canary::kNone) {
    options.saves.save.writer.codec = ckpt::Codec::kZstd;
  }
  if (c.seed % 3 == 0) options.slow_sync = absl::Milliseconds(500);
  if (c.story == "late") {
    options.network.late_share = 0.02;
    options.network.late_delay = absl::Seconds(200);
  }
  return options;
}

// Runs one case and keeps account of what its jobs were told.
class Story {
 public:
  explicit Story(const SimCase& sim_case)
      : case_(sim_case), world_(WorldOptions(sim_case)) {}

  SimVerdict Run() {
    verdict_.status = Tell();
    for (const Told& told : told_) {
      if (told.committed) verdict_.committed = told.step;
    }
    return verdict_;
  }

 private:
  struct Told {
    int64_t step = 0;
    bool committed = false;
    bool lost = false;  // reported as aborted or failed by rank 0
  };

  absl::Status Tell() {
    SimJob& job = world_.StartJob(case_.ranks);
    absl::Status status = world_.Claim(job);
    if (case_.story == "late") {
      // A start that gives up on a late message is a fair end of the story.
      return absl::IsDeadlineExceeded(status) ? absl::OkStatus()
             : status.ok()                    ? Late(job)
                                              : status;
    }
    if (!status.ok()) return Wrong("the first start", status);
    status = Save(job, 100);
    if (!status.ok()) return Wrong("the first save", status);
    world_.FinishRetention(job);

    ops_before_ = world_.disk().ops();
    if (case_.story == "cut") return Cut(job);
    if (case_.story == "recovery") return Recovery(job);
    if (case_.story == "kill") return Kill(job);
    if (case_.story == "fault") return Fault(job);
    if (case_.story == "takeover") return Takeover(job);
    return absl::InvalidArgumentError("no such story: " + case_.story);
  }

  absl::Status Wrong(const std::string& what, const absl::Status& status) {
    return absl::Status(
        status.code(),
        absl::StrFormat("%s: %s", what, std::string(status.message())));
  }

  // Saves, and remembers what rank 0 was told, if it lives to hear it.
  absl::Status Save(SimJob& job, int64_t step) {
    told_.push_back({step});
    const absl::Status status = world_.Save(job, step);
    for (const auto& rank : job.ranks) {
      if (rank == nullptr || !rank->saved().has_value()) continue;
      if (rank->saved()->outcome == SaveOutcome::kCommitted) {
        told_.back().committed = true;
      }
    }
    if (job.ranks[0] != nullptr && job.ranks[0]->saved().has_value()) {
      const SaveOutcome outcome = job.ranks[0]->saved()->outcome;
      told_.back().lost = outcome == SaveOutcome::kAborted ||
                          outcome == SaveOutcome::kFailed ||
                          outcome == SaveOutcome::kSkipped;
    }
    if (status.code() == absl::StatusCode::kInternal) stuck_ = status;
    return status;
  }

  absl::Status Cut(SimJob& job) {
    world_.disk().CutPowerAfter(case_.after);
    Save(job, 200).IgnoreError();
    if (!world_.disk().power_is_off()) world_.FinishRetention(job);
    Account();
    world_.PowerCycle(case_.seed);
    return ComeBack();
  }

  absl::Status Recovery(SimJob& job) {
    world_.disk().CutPowerAfter(case_.first_cut);
    Save(job, 200).IgnoreError();
    if (!world_.disk().power_is_off()) world_.FinishRetention(job);
    world_.PowerCycle(case_.seed);

    ops_before_ = world_.disk().ops();
    world_.disk().CutPowerAfter(case_.after);
    SimJob& second = world_.StartJob(case_.ranks);
    const absl::Status status = world_.Claim(second);
    if (status.ok()) {
      Save(second, 300).IgnoreError();
      if (!world_.disk().power_is_off()) world_.FinishRetention(second);
    } else if (!world_.disk().power_is_off()) {
      return Wrong("the second start", status);
    }
    Account();
    world_.PowerCycle(case_.seed + 1);
    return ComeBack();
  }

  absl::Status Kill(SimJob& job) {
    const int process = job.ranks[case_.rank]->process();
    const int64_t before = world_.disk().faults().ops_of(process);
    world_.disk().KillAfter(process, case_.after);
    Save(job, 200).IgnoreError();
    verdict_.disturbed = job.ranks[case_.rank] == nullptr;
    verdict_.ops = world_.disk().faults().ops_of(process) - before;
    // The others go on for a while: rank 0, if it lives, must not lose what it
    // has; then the launcher ends the job.
    if (stuck_.ok() && job.any_dead() && !job.all_dead()) {
      Save(job, 210).IgnoreError();
    }
    if (!stuck_.ok()) return stuck_;
    world_.KillAllJobs();
    return ComeBack();
  }

  absl::Status Fault(SimJob& job) {
    SimFault fault;
    fault.process = job.ranks[case_.rank]->process();
    fault.op = case_.op;
    fault.nth = case_.after + 1;
    fault.from_then_on = case_.from_then_on;
    fault.status = absl::Status(case_.code, "injected");
    world_.disk().Inject(std::move(fault));
    const absl::Status status = Save(job, 200);
    if (!stuck_.ok()) return stuck_;
    verdict_.disturbed = !status.ok();
    if (job.any_dead()) return absl::InternalError("a fault killed a rank");
    Account();
    world_.disk().ClearFaults();
    // Training went on; the next saves must be as good as ever: of the same
    // step (SIGTERM comes before the next one), and later. A rank may hear late
    // that the save before is over, so one skip is fair.
    absl::Status next = Save(job, 200);
    if (absl::IsUnavailable(next)) next = Save(job, 200);
    if (!next.ok()) return Wrong("the save after the fault", next);
    next = Save(job, 300);
    if (!next.ok()) return Wrong("the second save after the fault", next);
    world_.FinishRetention(job);
    world_.KillAllJobs();
    return ComeBack();
  }

  absl::Status Late(SimJob& job) {
    for (int64_t step = 100; step <= 600; step += 100) {
      Save(job, step).IgnoreError();
      if (!stuck_.ok()) return stuck_;
      verdict_.disturbed |= job.network->late() > 0;
    }
    Account();
    if (case_.seed % 2 == 0) {
      world_.KillAllJobs();
    } else {
      world_.PowerCycle(case_.seed);
    }
    world_.options().network.late_share = 0;
    return ComeBack();
  }

  absl::Status Takeover(SimJob& job) {
    // Rank 0 of the old job stops before its (after + 1)-th operation of the
    // save; the others are gone.
    const int process = job.ranks[0]->process();
    const int64_t before = world_.disk().faults().ops_of(process);
    world_.BeginSave(job, 200);
    told_.push_back({200});
    world_.RunUntil([&] {
      return world_.disk().faults().ops_of(process) - before >= case_.after ||
             job.ranks[0]->saved().has_value();
    });
    verdict_.disturbed = !job.ranks[0]->saved().has_value();
    verdict_.ops = world_.disk().faults().ops_of(process) - before;
    if (job.ranks[0]->saved().has_value()) {
      told_.back().committed =
          job.ranks[0]->saved()->outcome == SaveOutcome::kCommitted;
    }
    job.frozen = true;

    SimJob& second = world_.StartJob(case_.ranks);
    const absl::StatusOr<int64_t> found = world_.LoadAndCheck(second);
    if (!found.ok()) return Wrong("the job that takes over", found.status());
    const absl::Status allowed = Check(*found);
    if (!allowed.ok()) return Wrong("the job that takes over", allowed);
    // What the old job does from now on must not count, whatever it believes.
    if (*found == 100) told_.back().lost = true;
    if (case_.seed % 2 == 0) {
      const absl::Status saved = Save(second, 150);
      if (!saved.ok()) return Wrong("the save of the new owner", saved);
    }
    job.frozen = false;
    world_.RunUntil([&] {
      return job.ranks[0] == nullptr ||
             (job.ranks[0]->saved().has_value() &&
              !job.ranks[0]->host().saves().retiring());
    });
    if (case_.seed % 2 == 0) {
      const absl::Status saved = Save(second, 160);
      if (!saved.ok()) {
        return Wrong("a save of the new owner beside the old one", saved);
      }
    }
    world_.KillAllJobs();
    return ComeBack();
  }

  // The last job: what it finds is the verdict.
  absl::Status ComeBack() {
    if (!stuck_.ok()) return stuck_;
    const absl::StatusOr<int64_t> found = world_.LoadAndCheck(case_.ranks);
    if (!found.ok()) return Wrong("coming back", found.status());
    verdict_.found = *found;
    return Check(*found);
  }

  // Is `found` what a new job may find?
  absl::Status Check(int64_t found) const {
    size_t newest = 0;
    bool any = false;
    std::optional<size_t> place;
    for (size_t i = 0; i < told_.size(); ++i) {
      if (told_[i].committed) newest = i;
      any |= told_[i].committed;
      if (told_[i].step == found) place = i;
    }
    if (found == -1 && !any) return absl::OkStatus();
    if (!place.has_value()) {
      return absl::InternalError(
          absl::StrFormat("found step %d, which nobody saved", found));
    }
    if (*place < newest) {
      return absl::DataLossError(absl::StrFormat(
          "found step %d, although step %d was reported as committed", found,
          told_[newest].step));
    }
    if (told_[*place].lost) {
      return absl::InternalError(
          absl::StrFormat("found step %d, which was reported as lost", found));
    }
    return absl::OkStatus();
  }

  void Account() {
    verdict_.ops = world_.disk().ops() - ops_before_;
    if (world_.disk().power_is_off()) verdict_.disturbed = true;
  }

  const SimCase case_;
  SimWorld world_;
  SimVerdict verdict_;
  std::vector<Told> told_;
  int64_t ops_before_ = 0;
  absl::Status stuck_;
};

absl::StatusOr<SimOp> ParseOp(std::string_view name) {
  for (int op = 0; op <= static_cast<int>(SimOp::kClose); ++op) {
    if (Name(static_cast<SimOp>(op)) == name) return static_cast<SimOp>(op);
  }
  return absl::InvalidArgumentError("no such operation: " + std::string(name));
}

}  // namespace

std::string_view NameOf(Canary canary) {
  switch (canary) {
    case Canary::kNone:
      return "none";
    case Canary::kDiskIgnoresSync:
      return "disk-ignores-sync";
    case Canary::kDiskIgnoresDirSync:
      return "disk-ignores-dir-sync";
    case Canary::kNoFileSync:
      return "no-file-sync";
    case Canary::kNoPartSync:
      return "no-part-sync";
    case Canary::kNoDirSync:
      return "no-dir-sync";
    case Canary::kVoteBeforeSync:
      return "vote-before-sync";
    case Canary::kRetireBeforeCommit:
      return "retire-before-commit";
    case Canary::kTouchAfterYes:
      return "touch-after-yes";
    case Canary::kReuseDirectory:
      return "reuse-directory";
    case Canary::kIgnoreSeal:
      return "ignore-seal";
    case Canary::kReleaseBeforeComplete:
      return "release-before-complete";
  }
  return "?";
}

absl::StatusOr<Canary> ParseCanary(std::string_view name) {
  for (const Canary canary : kAllCanaries) {
    if (NameOf(canary) == name) return canary;
  }
  return absl::InvalidArgumentError("no such canary: " + std::string(name));
}

SimVerdict RunCase(const SimCase& sim_case) { return Story(sim_case).Run(); }

std::string Replay(const SimCase& c) {
  std::string text = absl::StrFormat("ckpt_sim --story=%s --seed=%d --after=%d",
                                     c.story, c.seed, c.after);
  const SimCase usual;
  if (c.story == "recovery") {
    text += absl::StrFormat(" --first_cut=%d", c.first_cut);
  }
  if (c.rank != usual.rank) text += absl::StrFormat(" --rank=%d", c.rank);
  if (c.story == "fault") {
    text += absl::StrFormat(" --op=%s --from_then_on=%d --code=%d",
                            std::string(Name(c.op)), c.from_then_on,
                            static_cast<int>(c.code));
  }
  if (c.ranks != usual.ranks) text += absl::StrFormat(" --ranks=%d", c.ranks);
  if (c.keep_last != usual.keep_last) {
    text += absl::StrFormat(" --keep_last=%d", c.keep_last);
  }
  if (c.object_store) text += " --object_store=1";
  if (c.late_ops > 0) text += absl::StrFormat(" --late_ops=%d", c.late_ops);
  if (c.canary != Canary::kNone) {
    text += absl::StrFormat(" --canary=%s", std::string(NameOf(c.canary)));
  }
  return text;
}

absl::StatusOr<SimCase> ParseCase(const std::vector<std::string>& arguments) {
  SimCase c;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('=');
    if (!argument.starts_with("--") || equals == std::string::npos) {
      return absl::InvalidArgumentError("expected --NAME=VALUE, found '" +
                                        argument + "'");
    }
    const std::string name = argument.substr(2, equals - 2);
    const std::string value = argument.substr(equals + 1);
    if (name == "story") {
      c.story = value;
      continue;
    }
    if (name == "op") {
      const absl::StatusOr<SimOp> op = ParseOp(value);
      if (!op.ok()) return op.status();
      c.op = *op;
      continue;
    }
    if (name == "canary") {
      const absl::StatusOr<Canary> canary = ParseCanary(value);
      if (!canary.ok()) return canary.status();
      c.canary = *canary;
      continue;
    }
    int64_t number = 0;
    if (!absl::SimpleAtoi(value, &number)) {
      return absl::InvalidArgumentError("not a number: '" + argument + "'");
    }
    if (name == "seed") {
      c.seed = number;
    } else if (name == "after") {
      c.after = number;
    } else if (name == "first_cut") {
      c.first_cut = number;
    } else if (name == "rank") {
      c.rank = static_cast<int>(number);
    } else if (name == "from_then_on") {
      c.from_then_on = number != 0;
    } else if (name == "code") {
      c.code = static_cast<absl::StatusCode>(number);
    } else if (name == "ranks") {
      c.ranks = static_cast<int>(number);
    } else if (name == "keep_last") {
      c.keep_last = static_cast<int>(number);
    } else if (name == "late_ops") {
      c.late_ops = number;
    } else if (name == "object_store") {
      c.object_store = number != 0;
    } else {
      return absl::InvalidArgumentError("unknown option --" + name);
    }
  }
  return c;
}

void CheckCase(const SimCase& sim_case, SimTally* tally, int64_t old_step) {
  const SimVerdict verdict = RunCase(sim_case);
  EXPECT_TRUE(verdict.status.ok()) << "replay: " << Replay(sim_case) << "\n"
                                   << verdict.status;
  ++tally->cases;
  tally->disturbed += verdict.disturbed;
  tally->old_one |= verdict.found == old_step;
  tally->new_one |=
      verdict.found > old_step && verdict.found <= tally->new_step_max;
}

int SeedsOfSweep(int in_ci) {
  const char* const text = std::getenv("HOLDFAST_SIM_SEEDS");
  int seeds = 0;
  if (text != nullptr && absl::SimpleAtoi(text, &seeds) && seeds > 0) {
    return seeds;
  }
  return in_ci;
}

}  // namespace holdfast::tests

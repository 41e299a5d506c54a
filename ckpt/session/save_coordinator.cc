// ckpt/session/save_coordinator.cc: see save_coordinator.h.

#include "ckpt/session/save_coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/format/codec.h"
#include "ckpt/session/catalog.h"
#include "ckpt/session/messages.h"
#include "ckpt/session/rank_names.h"
#include "ckpt/session/run_files.h"

namespace holdfast::ckpt {
namespace {

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

bool AllDone(const std::vector<Io::Ref>& calls) {
  return std::all_of(calls.begin(), calls.end(),
                     [](const Io::Ref& call) { return call->done; });
}

// Of calls that are done, or were waited for long enough.
absl::Status FirstError(const std::vector<Io::Ref>& calls) {
  for (const Io::Ref& call : calls) {
    if (!call->done) {
      return absl::DeadlineExceededError("the storage does not answer");
    }
    if (!call->status.ok()) return call->status;
  }
  return absl::OkStatus();
}

}  // namespace

std::string WhatNext(const std::optional<CheckpointId>& parent) {
  if (!parent.has_value()) {
    return "; this save is abandoned, training goes on, there is no earlier "
           "checkpoint yet";
  }
  return absl::StrFormat(
      "; this save is abandoned, training goes on, step %d is still whole",
      parent->step);
}

SaveCoordinator::SaveCoordinator(const SessionEnv& env, SavePlans* plans,
                                 SaveOrder order,
                                 const CoordinatorOptions& options)
    : env_(env),
      plans_(plans),
      order_(std::move(order)),
      options_(options),
      io_(env),
      votes_(env.group->size()),
      done_ranks_(env.group->size()) {
  fiber_.Start(Run());
}

absl::Status SaveCoordinator::Doing(absl::StatusCode code,
                                    const std::string& text) const {
  return absl::Status(
      code, absl::StrFormat("saving step %d: %s%s", order_.id.step, text,
                            WhatNext(order_.parent)));
}

void SaveCoordinator::Tell(uint32_t phase, std::span<const std::byte> body) {
  const MessageTag tag{order_.id.incarnation, order_.id.attempt, phase};
  for (int rank = 0; rank < env_.group->size(); ++rank) {
    env_.group->Send(Rank{rank}, tag, body);
  }
}

bool SaveCoordinator::OnMessage(const Message& message) {
  const MessageTag& tag = message.tag;
  if (tag.incarnation != order_.id.incarnation ||
      tag.attempt != order_.id.attempt ||
      (tag.phase != kPhaseVote && tag.phase != kPhaseDone)) {
    return false;
  }
  const int rank = Index(message.from);
  if (tag.phase == kPhaseDone) {
    if (!done_ranks_[rank]) ++done_count_;
    done_ranks_[rank] = true;
    return true;
  }
  if (rank == 0) {
    vote_deadline_ = env_.clock->Monotonic() + options_.vote_timeout;
  }
  absl::StatusOr<VoteMessage> vote = DecodeVote(message.body);
  absl::Status status = vote.ok() ? vote->status : vote.status();
  if (status.ok() && votes_[rank].has_value()) return true;
  if (status.ok()) {
    votes_[rank] = *std::move(vote);
    ++yes_count_;
  } else if (first_no_.ok()) {
    first_no_ = absl::Status(
        vote.ok() && vote->busy ? absl::StatusCode::kUnavailable
                                : absl::StatusCode::kAborted,
        absl::StrFormat("rank %d (%s) voted no: %s", rank,
                        env_.group->HostOf(message.from), Text(status)));
  }
  return true;
}

void SaveCoordinator::Poll() {
  // Between Begin and the votes rank 0's processor has little to do.
  if (begun_ && !outcome_.has_value()) plans_->PlanNext();
  look_fiber_.Poll();
  fiber_.Poll();
}

std::vector<int> SaveCoordinator::UndoneRanks() const {
  std::vector<int> ranks;
  if (!begun_) return ranks;
  for (size_t rank = 0; rank < done_ranks_.size(); ++rank) {
    if (!done_ranks_[rank]) ranks.push_back(rank);
  }
  return ranks;
}

absl::Status SaveCoordinator::Missing() const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < votes_.size(); ++rank) {
    if (!votes_[rank].has_value()) ranks.push_back(rank);
  }
  return Doing(absl::StatusCode::kDeadlineExceeded,
               absl::StrFormat("%d of %d ranks did not vote within %d s: %s",
                               ranks.size(), votes_.size(),
                               absl::ToInt64Seconds(options_.vote_timeout),
                               NameRanks(*env_.group, ranks)));
}

absl::Status SaveCoordinator::CheckVote(Rank rank,
                                        const VoteMessage& vote) const {
  const uint64_t hash = plans_->Of(rank).hash;
  const SavePlans::VoteSize size = plans_->VoteOf(rank);
  // A coded file, which is one rank's, may have any length that is possible;
  // ValidateManifest looks.
  if (vote.plan_hash == hash && vote.unit_count == size.unit_count &&
      (vote.plain_bytes > 0
           ? !plans_->groups().shared() &&
                 vote.plain_bytes == plans_->Of(rank).part.data_bytes
           : vote.file_bytes == size.bytes)) {
    return absl::OkStatus();
  }
  return Doing(
      absl::StatusCode::kAborted,
      absl::StrFormat("rank %d (%s) follows another plan (hash %016x, %d bytes "
                      "in %d units; rank 0 expects %016x, %d bytes in %d "
                      "units): do all ranks run the same build and "
                      "configuration?",
                      Index(rank), env_.group->HostOf(rank), vote.plan_hash,
                      vote.file_bytes, vote.unit_count, hash, size.bytes,
                      size.unit_count));
}

uint64_t SaveCoordinator::bytes_total() const {
  uint64_t bytes = 0;
  const FileGroups& groups = plans_->groups();
  for (uint32_t file = 0; file < groups.count(); ++file) {
    const auto& vote = votes_[Index(groups.First(file))];
    if (vote.has_value()) bytes += vote->file_bytes;
  }
  return bytes;
}

Manifest SaveCoordinator::BuildManifest() const {
  Manifest manifest;
  manifest.run_id = order_.run_id;
  manifest.id = order_.id;
  manifest.commit_number = order_.commit_number;
  manifest.parent = order_.parent;
  manifest.time_unix_ms = absl::ToUnixMillis(env_.clock->WallTime());
  manifest.world = votes_.size();
  manifest.layout = plans_->layout().description();
  manifest.plan_hash = plans_->JobHash();
  manifest.items = plans_->layout().items();
  manifest.item_digests.resize(manifest.items.size());
  manifest.attributes = order_.attributes;
  if (plans_->names().dirs() > 0) {
    manifest.features_must.push_back(kFeatureDirectories);
  }
  for (const auto& vote : votes_) {
    for (const auto& [item, digest] : vote->digests) {
      manifest.item_digests[item] += digest;
    }
  }
  const FileGroups& groups = plans_->groups();
  bool coded = false;
  for (uint32_t file = 0; file < groups.count(); ++file) {
    const Rank first = groups.First(file);
    const VoteMessage& vote = *votes_[Index(first)];
    std::vector<Chunk> chunks = plans_->Of(first).chunks;
    for (int rank = Index(first) + 1; rank < Index(groups.End(file)); ++rank) {
      const std::vector<Chunk>& more = plans_->Of(Rank{rank}).chunks;
      chunks.insert(chunks.end(), more.begin(), more.end());
    }
    manifest.files.push_back({plans_->names().NameOf(file), vote.file_bytes,
                              plans_->ShapeOf(file).unit_count, vote.crc_index,
                              std::move(chunks), vote.plain_bytes});
    coded |= vote.plain_bytes > 0;
  }
  if (coded) manifest.features_must.push_back(kZstdName);
  return manifest;
}

Task<OutcomeMessage> SaveCoordinator::Decide() {
  const auto aborted = [](absl::Status status) {
    return OutcomeMessage{absl::IsUnavailable(status) ? SaveOutcome::kSkipped
                                                      : SaveOutcome::kAborted,
                          std::move(status)};
  };
  // The name of the attempt, and of the directories in it; those of the files
  // are synced by their ranks.
  std::vector<Io::Ref> names = {io_.SyncDir(kCheckpointsDir)};
  if (plans_->names().dirs() > 0) {
    names.push_back(io_.SyncDir(AttemptDir(order_.id)));
  }

  Until voted([this] {
    return !first_no_.ok() || yes_count_ == votes_.size() ||
           (vote_deadline_.has_value() &&
            env_.clock->Monotonic() > *vote_deadline_);
  });
  co_await voted;
  if (!first_no_.ok()) {
    co_return aborted(Doing(first_no_.code(), Text(first_no_)));
  }
  if (yes_count_ < votes_.size()) co_return aborted(Missing());
  while (plans_->PlanNext()) {
  }
  for (size_t rank = 0; rank < votes_.size(); ++rank) {
    const absl::Status same =
        CheckVote(Rank{static_cast<int>(rank)}, *votes_[rank]);
    if (!same.ok()) co_return aborted(same);
    for (const auto& [item, digest] : votes_[rank]->digests) {
      if (item >= plans_->layout().items().size()) {
        co_return aborted(
            Doing(absl::StatusCode::kAborted,
                  absl::StrFormat("rank %d names item %d of %d", rank, item,
                                  plans_->layout().items().size())));
      }
    }
  }

  const absl::Duration give_up = env_.clock->Monotonic() + options_.io_timeout;
  Until names_safe([this, &names, give_up] {
    return AllDone(names) || env_.clock->Monotonic() > give_up;
  });
  co_await names_safe;
  const absl::Status safe = FirstError(names);
  if (!safe.ok()) {
    co_return aborted(Doing(absl::StatusCode::kAborted,
                            absl::StrFormat("rank 0 could not sync %s: %s",
                                            kCheckpointsDir, Text(safe))));
  }

  look_fiber_.Start(LookAtClaims());
  const absl::Duration look_give_up =
      env_.clock->Monotonic() + options_.io_timeout;
  Until looked([this, look_give_up] {
    return claim_.has_value() || env_.clock->Monotonic() > look_give_up;
  });
  co_await looked;
  const absl::StatusOr<uint32_t> claim = claim_.value_or(
      absl::DeadlineExceededError("the storage does not answer"));
  if (!claim.ok()) {
    co_return aborted(Doing(
        absl::StatusCode::kAborted,
        "rank 0 could not see who owns the run: " + Text(claim.status())));
  }
  if (*claim > order_.id.incarnation) {
    co_return OutcomeMessage{
        SaveOutcome::kAborted,
        absl::FailedPreconditionError(absl::StrFormat(
            "saving step %d: another incarnation took over (%s is there, this "
            "job is incarnation %d); it commits nothing any more",
            order_.id.step, ClaimName(*claim), order_.id.incarnation))};
  }

  const Manifest manifest = BuildManifest();
  const absl::Status valid = ValidateManifest(manifest);
  if (!valid.ok()) {
    co_return aborted(
        Doing(absl::StatusCode::kAborted,
              "the plans do not make a whole checkpoint: " + Text(valid)));
  }
  const std::string name = AttemptDir(order_.id) + "/" + kManifestName;
  const Io::Ref put = io_.PutIfAbsent(name, EncodeManifest(manifest));
  const absl::Duration put_give_up =
      env_.clock->Monotonic() + options_.io_timeout;
  Until put_answered([this, put, put_give_up] {
    return put->done || env_.clock->Monotonic() > put_give_up;
  });
  co_await put_answered;
  if (put->done && put->status.ok()) {
    co_return OutcomeMessage{SaveOutcome::kCommitted, absl::OkStatus()};
  }
  if (!put->done || absl::IsUnknown(put->status)) {
    co_return OutcomeMessage{
        SaveOutcome::kUnknown,
        absl::UnknownError(absl::StrFormat(
            "saving step %d: putting %s: %s; the checkpoint may exist, the "
            "next "
            "reading of the catalog decides, training goes on",
            order_.id.step, name,
            put->done ? Text(put->status) : "the storage does not answer"))};
  }
  if (absl::IsNotFound(put->status)) {
    co_return OutcomeMessage{SaveOutcome::kAborted,
                             absl::FailedPreconditionError(absl::StrFormat(
                                 "saving step %d: the directory %s is gone: "
                                 "another incarnation took "
                                 "over",
                                 order_.id.step, AttemptDir(order_.id)))};
  }
  co_return aborted(Doing(
      absl::StatusCode::kAborted,
      absl::StrFormat("rank 0 could not put %s: %s", name, Text(put->status))));
}

Task<bool> SaveCoordinator::LookAtClaims() {
  claim_ = co_await NewestClaim(&io_);
  co_return true;
}

Task<bool> SaveCoordinator::Run() {
  const std::string dir = AttemptDir(order_.id);
  const absl::Duration give_up = env_.clock->Monotonic() + options_.io_timeout;
  std::vector<Io::Ref> making = {io_.MakeDir(dir)};
  Until answered([this, &making, give_up] {
    return AllDone(making) || env_.clock->Monotonic() > give_up;
  });
  co_await answered;
  absl::Status made = FirstError(making);
  made_dir_ = made.ok();
  if (made.ok() && plans_->names().dirs() > 0) {
    making.clear();
    for (uint32_t i = 0; i < plans_->names().dirs(); ++i) {
      making.push_back(io_.MakeDir(dir + "/" + plans_->names().Dir(i)));
    }
    Until inside([this, &making, give_up] {
      return AllDone(making) || env_.clock->Monotonic() > give_up;
    });
    co_await inside;
    made = FirstError(making);
  }
  if (!made.ok()) {
    const absl::Status failed = Doing(
        absl::IsResourceExhausted(made) ? absl::StatusCode::kResourceExhausted
                                        : absl::StatusCode::kAborted,
        "rank 0 could not make its directory: " + Text(made));
    outcome_ = OutcomeMessage{SaveOutcome::kAborted, failed};
    decided_at_ = env_.clock->Monotonic();
    Tell(kPhaseBegin, Encode(BeginMessage{order_.id, order_.repeat, failed}));
    co_return true;
  }
  begun_ = true;
  Tell(kPhaseBegin,
       Encode(BeginMessage{order_.id, order_.repeat, absl::OkStatus()}));

  Task<OutcomeMessage> deciding = Decide();
  OutcomeMessage outcome = co_await deciding;
  decided_at_ = env_.clock->Monotonic();
  Tell(kPhaseOutcome, Encode(outcome));
  outcome_ = std::move(outcome);

  const absl::Duration settled = decided_at_ + options_.settle_timeout;
  Until all_done([this, settled] {
    return done_count_ == done_ranks_.size() ||
           env_.clock->Monotonic() > settled;
  });
  co_await all_done;
  co_return true;
}

}  // namespace holdfast::ckpt

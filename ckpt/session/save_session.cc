// ckpt/session/save_session.cc: see save_session.h.

#include "ckpt/session/save_session.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/session/messages.h"
#include "ckpt/session/rank_names.h"
#include "ckpt/session/run_files.h"

namespace holdfast::ckpt {
namespace {

constexpr Rank kRankZero{0};
// Of the canary alone; the writer's own numbers are small or count units.
constexpr uint64_t kRemoveTag = uint64_t{1} << 40;

std::string Gigabytes(uint64_t bytes) {
  if (bytes < 10'000'000) return absl::StrFormat("%.1f kB", bytes / 1e3);
  return absl::StrFormat("%.2f GB", bytes / 1e9);
}

// What a rank writes itself, of what it votes for.
uint64_t BytesOf(const SavePlans& plans, uint64_t voted) {
  for (const SavePlans::Member& member : plans.members()) {
    if (member.rank != plans.leader()) voted -= member.part.data_bytes;
  }
  return voted;
}

}  // namespace

SaveSession::SaveSession(const SessionEnv& env, SavePlans* plans,
                         Snapshot* snapshot, SaveWriter* writer,
                         uint32_t incarnation, RunId run_id, SaveKey key,
                         std::optional<CheckpointId> parent,
                         const SaveOptions& options)
    : env_(env),
      plans_(plans),
      snapshot_(snapshot),
      writer_(writer),
      incarnation_(incarnation),
      run_id_(run_id),
      key_(key),
      parent_(parent),
      options_(options),
      started_at_(env.clock->Monotonic()),
      deadline_(started_at_ + options.begin_timeout) {
  result_.id = {key.step, incarnation, 0};
  result_.bytes = BytesOf(*plans, plans->OwnVote().bytes);
}

void SaveSession::Coordinate(const SessionEnv& env, SaveOrder order) {
  HF_CHECK(env_.group->rank() == kRankZero, "rank 0 coordinates");
  coordinator_space_ = env.space;
  coordinator_.emplace(env, plans_, std::move(order), options_.coordinator);
}

void SaveSession::Send(uint32_t phase, std::span<const std::byte> body) {
  env_.group->Send(kRankZero, {incarnation_, result_.id.attempt, phase}, body);
}

void SaveSession::OnCompletion(const Completion& completion) {
  if (coordinator_.has_value() &&
      SpaceOf(completion.tag) == coordinator_space_) {
    coordinator_->OnCompletion(completion);
  } else if (NumberOf(completion.tag) == kRemoveTag) {
    removing_ = false;
  } else {
    writer_->OnCompletion(completion);
  }
}

bool SaveSession::OnMessage(const Message& message) {
  if (coordinator_.has_value() && coordinator_->OnMessage(message)) return true;
  const MessageTag& tag = message.tag;
  if (tag.incarnation != incarnation_) return false;
  if (tag.phase == kPhasePart && tag.attempt == result_.id.attempt) {
    OnPart(message);
    return true;
  }
  if (message.from != kRankZero) return false;
  if (tag.phase == kPhaseBegin && state_ == State::kWaiting) {
    const absl::StatusOr<BeginMessage> begin = DecodeBegin(message.body);
    if (!begin.ok()) {
      Skip(begin.status());
      return true;
    }
    if (begin->key() != key_) return false;
    OnBegin(*begin);
    return true;
  }
  if (tag.phase == kPhaseOutcome && tag.attempt == result_.id.attempt) {
    absl::StatusOr<OutcomeMessage> outcome = DecodeOutcome(message.body);
    OnOutcome(outcome.ok()
                  ? *std::move(outcome)
                  : OutcomeMessage{SaveOutcome::kUnknown, outcome.status()});
    return true;
  }
  return false;
}

void SaveSession::OnBegin(const BeginMessage& begin) {
  if (!begin.status.ok()) {
    // Rank 0's own failure to make the directory is rank 0's report.
    const bool own = coordinator_.has_value();
    End(absl::IsUnavailable(begin.status) ? SaveOutcome::kSkipped
        : own                             ? SaveOutcome::kFailed
                                          : SaveOutcome::kAborted,
        begin.status);
    return;
  }
  result_.id = begin.id;
  state_ = State::kWriting;
  // Until the leader's file is there.
  deadline_ = env_.clock->Monotonic() + options_.begin_timeout +
              options_.writer.create_patience;
  writer_->Start(
      env_.space, AttemptDir(begin.id),
      {run_id_, begin.id, plans_->own_file(), plans_->groups().count()});
}

void SaveSession::OnFile(uint32_t attempt) {
  if (state_ == State::kWriting && attempt == result_.id.attempt) {
    writer_->FileIsThere();
  }
}

void SaveSession::OnPart(const Message& message) {
  if (state_ != State::kWriting) return;  // late: given up already
  absl::StatusOr<PartMessage> part = DecodePart(message.body);
  absl::Status fine = part.status();
  if (fine.ok()) fine = writer_->AddPart(message.from, std::move(part->units));
  if (!fine.ok()) writer_->Stop(std::move(fine));
}

// What the ranks of one file tell each other, or do not.
void SaveSession::CheckFile(absl::Duration now) {
  if (!file_told_ && writer_->file_made()) {
    file_told_ = true;
    for (const SavePlans::Member& member : plans_->members()) {
      if (member.rank == plans_->leader()) continue;
      env_.group->Send(member.rank,
                       {incarnation_, result_.id.attempt, kPhaseFile}, {});
    }
  }
  if (writer_->awaits_file() && now > deadline_) {
    writer_->Stop(absl::DeadlineExceededError(absl::StrFormat(
        "rank %d (%s), whose file this rank shares, did not make it within %d "
        "s",
        Index(plans_->leader()), env_.group->HostOf(plans_->leader()),
        absl::ToInt64Seconds(options_.begin_timeout +
                             options_.writer.create_patience))));
  }
  const std::optional<absl::Duration> since = writer_->awaits_parts_since();
  if (since.has_value() && now - *since > options_.coordinator.vote_timeout) {
    const std::vector<int> missing = writer_->MissingParts();
    writer_->Stop(absl::DeadlineExceededError(absl::StrFormat(
        "%d of %d ranks that share this rank's file did not finish their parts "
        "within %d s: %s",
        missing.size(), plans_->members().size(),
        absl::ToInt64Seconds(options_.coordinator.vote_timeout),
        NameRanks(*env_.group, missing))));
  }
}

void SaveSession::OnOutcome(OutcomeMessage outcome) {
  if (state_ != State::kWriting && state_ != State::kVoted) return;
  if (state_ == State::kWriting && outcome.outcome != SaveOutcome::kAborted &&
      outcome.outcome != SaveOutcome::kSkipped) {
    // Nothing is committed without this rank's vote.
    outcome = {SaveOutcome::kUnknown,
               absl::InternalError(absl::StrFormat(
                   "saving step %d: rank 0 says '%s' before this rank voted",
                   key_.step, std::string(NameOf(outcome.outcome))))};
  }
  End(outcome.outcome, std::move(outcome.status));
}

void SaveSession::Skip(absl::Status why) {
  if (state_ != State::kWaiting) return;
  End(absl::IsUnavailable(why) ? SaveOutcome::kSkipped : SaveOutcome::kAborted,
      std::move(why));
}

void SaveSession::End(SaveOutcome outcome, absl::Status status) {
  result_.outcome = outcome;
  ended_at_ = env_.clock->Monotonic();
  result_.total = ended_at_ - started_at_;
  if (!status.ok() && state_ != State::kVoted) {
    // The optimizer need not wait for bytes that nobody will count on.
    if (state_ == State::kWaiting) {
      snapshot_->Poison(status);
      snapshot_->Release();
    } else {
      writer_->Stop(status);
    }
  }
  if (options_.canary_remove_after_yes && state_ == State::kVoted &&
      outcome != SaveOutcome::kCommitted) {
    removing_ = true;
    env_.storage->Remove(AttemptDir(result_.id) + "/" +
                             plans_->names().NameOf(plans_->own_file()),
                         env_.Tag(kRemoveTag));
  }
  result_.status = std::move(status);
  state_ = State::kEnding;
}

absl::Status SaveSession::Explain(const absl::Status& own) const {
  const std::string text(own.message());
  if (absl::IsResourceExhausted(own) && writer_->units_ended() == 0) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "saving step %d: rank %d needs %s: %s%s", key_.step,
        Index(env_.group->rank()), Gigabytes(plans_->OwnVote().bytes), text,
        WhatNext(parent_)));
  }
  return absl::Status(
      own.code(), absl::StrFormat("saving step %d: rank %d (%s): %s%s",
                                  key_.step, Index(env_.group->rank()),
                                  env_.group->HostOf(env_.group->rank()), text,
                                  WhatNext(parent_)));
}

void SaveSession::VoteYes() {
  VoteMessage vote;
  vote.plan_hash = plans_->own_hash();
  const SaveFileFacts facts = writer_->facts();
  vote.file_bytes = facts.file_bytes;
  result_.bytes = BytesOf(*plans_, facts.file_bytes);
  vote.plain_bytes = facts.plain_bytes;
  vote.unit_count = facts.unit_count;
  vote.crc_index = writer_->crc_index();
  const std::vector<Digest128>& digests = writer_->item_digests();
  for (ItemIndex item = 0; item < digests.size(); ++item) {
    if (digests[item] != Digest128{}) {
      vote.digests.emplace_back(item, digests[item]);
    }
  }
  if (!plans_->leads()) {
    env_.group->Send(plans_->leader(),
                     {incarnation_, result_.id.attempt, kPhasePart},
                     Encode(PartMessage{writer_->Entries()}));
  }
  Send(kPhaseVote, Encode(vote));
  result_.write_time = writer_->write_time();
}

void SaveSession::VoteNo() {
  VoteMessage vote;
  vote.status = writer_->status();
  Send(kPhaseVote, Encode(vote));
}

void SaveSession::Poll() {
  writer_->Poll();
  if (coordinator_.has_value()) coordinator_->Poll();
  const absl::Duration now = env_.clock->Monotonic();
  switch (state_) {
    case State::kWaiting:
      if (now > deadline_) {
        Skip(absl::DeadlineExceededError(absl::StrFormat(
            "saving step %d: rank 0 (%s) did not begin within %d s%s",
            key_.step, env_.group->HostOf(kRankZero),
            absl::ToInt64Seconds(options_.begin_timeout), WhatNext(parent_))));
      }
      break;
    case State::kWriting:
      CheckFile(now);
      if (!writer_->status().ok()) {
        VoteNo();
        End(SaveOutcome::kFailed, Explain(writer_->status()));
      } else if (writer_->succeeded() ||
                 (options_.canary_vote_before_sync && writer_->has_index())) {
        VoteYes();
        state_ = State::kVoted;
        deadline_ = now + options_.outcome_timeout;
      }
      break;
    case State::kVoted:
      if (now > deadline_) {
        End(SaveOutcome::kUnknown,
            absl::DeadlineExceededError(absl::StrFormat(
                "saving step %d: rank 0 (%s) did not tell the outcome within "
                "%d s of this rank's vote; the checkpoint may exist, the next "
                "reading of the catalog decides, training goes on",
                key_.step, env_.group->HostOf(kRankZero),
                absl::ToInt64Seconds(options_.outcome_timeout))));
      }
      break;
    case State::kEnding:
      if (!writer_->finished() || removing_) break;
      if (result_.id.attempt != 0) Send(kPhaseDone, {});
      state_ = State::kEnded;
      break;
    case State::kEnded:
      break;
  }
  if (coordinator_.has_value() && coordinator_->outcome().has_value() &&
      result_.status.ok() && result_.outcome == SaveOutcome::kCommitted) {
    result_.total = coordinator_->decided_at() - started_at_;
    result_.bytes_total = coordinator_->bytes_total();
  }
}

std::optional<absl::Duration> SaveSession::DecidedFor() const {
  if (state_ < State::kEnding) return std::nullopt;
  if (coordinator_.has_value() && !coordinator_->outcome().has_value()) {
    return std::nullopt;
  }
  return env_.clock->Monotonic() - ended_at_;
}

bool SaveSession::done() const {
  return state_ == State::kEnded &&
         (!coordinator_.has_value() || coordinator_->done());
}

}  // namespace holdfast::ckpt

// ckpt/session/save_host.cc: see save_host.h.

#include "ckpt/session/save_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/session/messages.h"
#include "ckpt/session/save_messages.h"

namespace holdfast::ckpt {
namespace {

// Shares of ops_max.
constexpr size_t kCoordinatorOps = 2;
constexpr size_t kRetentionOps = 2;
// Steps are begun in lock step, so a rank is at most a few behind rank 0.
constexpr size_t kRefusedMax = 64;

SessionEnv WithOps(SessionEnv env, size_t ops) {
  env.ops_max = ops;
  return env;
}

}  // namespace

SaveHost::SaveHost(const SessionEnv& env, uint16_t spaces, SavePlans* plans,
                   Snapshot* snapshot, const SaveHostOptions& options)
    : env_(env),
      spaces_(spaces),
      plans_(plans),
      snapshot_(snapshot),
      options_(options),
      writer_(WithOps(env, env.ops_max - kCoordinatorOps - kRetentionOps),
              plans, snapshot, options.save.writer) {
  HF_CHECK(env.ops_max >= kOpsMin && spaces >= 8,
           "a save host needs %d calls in flight and 8 tag spaces", kOpsMin);
}

void SaveHost::OwnRun(RunId run_id, uint32_t incarnation,
                      std::optional<CheckpointId> parent, RunLedger ledger) {
  run_id_ = run_id;
  incarnation_ = incarnation;
  parent_ = parent;
  ledger_ = std::move(ledger);
}

uint16_t SaveHost::NewSpace() {
  last_space_ = (last_space_ + 1) % spaces_;
  return env_.space + last_space_;
}

SaveKey SaveHost::NextKey(int64_t step) {
  const uint32_t repeat = step == last_key_.step ? last_key_.repeat + 1 : 0;
  return last_key_ = {step, repeat};
}

void SaveHost::Begin(int64_t step,
                     std::map<std::string, std::string> attributes) {
  HF_CHECK(!busy() && incarnation_ != 0,
           "a save begins after the claim and the save before");
  const SaveKey key = NextKey(step);
  SessionEnv env = WithOps(env_, 1);  // the writer has its own
  env.space = NewSpace();
  session_spaces_ = {env.space};
  session_ = std::make_unique<SaveSession>(env, plans_, snapshot_, &writer_,
                                           incarnation_, run_id_, key, parent_,
                                           options_.save);
  if (is_zero()) {
    env = WithOps(env_, kCoordinatorOps);
    env.space = NewSpace();
    session_spaces_.insert(env.space);
    if (!options_.canary_reuse_attempt || last_attempt_ == 0) ++last_attempt_;
    SaveOrder order;
    order.run_id = run_id_;
    order.id = {step, incarnation_, last_attempt_};
    order.repeat = key.repeat;
    // Consumed even if nothing comes of it: an outcome that stays unknown may
    // have used it.
    order.commit_number = ++last_commit_;
    order.parent = parent_;
    order.attributes = std::move(attributes);
    if (options_.canary_retire_before_commit) {
      ledger_.committed.push_back(order.id);
      retention_due_ = true;
    }
    session_->Coordinate(env, std::move(order));
    return;
  }
  const auto refused =
      std::find_if(refused_.begin(), refused_.end(),
                   [&](const Refused& r) { return r.key == key; });
  if (refused != refused_.end()) {
    session_->Skip(refused->why);
  } else if (early_begin_.has_value()) {
    const Message begin = *std::exchange(early_begin_, std::nullopt);
    OnBegin(begin);
  }
}

void SaveHost::Skip(int64_t step) {
  const SaveKey key = NextKey(step);
  if (!is_zero()) {
    declined_ = std::max(declined_, key);
    if (early_begin_.has_value()) {
      const Message begin = *std::exchange(early_begin_, std::nullopt);
      OnBegin(begin);
    }
    return;
  }
  const BeginMessage refusal{
      {step, incarnation_, 0},
      key.repeat,
      absl::UnavailableError(absl::StrFormat(
          "saving step %d: skipped: rank 0 (%s) is still busy with the save "
          "before",
          step, env_.group->HostOf(Rank{0})))};
  for (int rank = 1; rank < env_.group->size(); ++rank) {
    env_.group->Send(Rank{rank}, {incarnation_, 0, kPhaseBegin},
                     Encode(refusal));
  }
}

void SaveHost::Decline(const MessageTag& tag, const std::string& why) {
  if (tag.attempt == 0) return;  // a refusal: nobody waits for an answer
  VoteMessage vote;
  vote.status = absl::UnavailableError(why);
  vote.busy = true;
  env_.group->Send(Rank{0}, {tag.incarnation, tag.attempt, kPhaseVote},
                   Encode(vote));
  env_.group->Send(Rank{0}, {tag.incarnation, tag.attempt, kPhaseDone}, {});
}

void SaveHost::Refuse(const SaveKey& key, absl::Status why) {
  refused_.push_back({key, std::move(why)});
  if (refused_.size() > kRefusedMax) refused_.pop_front();
}

void SaveHost::OnBegin(const Message& message) {
  const absl::StatusOr<BeginMessage> begin = DecodeBegin(message.body);
  if (!begin.ok()) {
    HF_LOG_ERROR("%s", std::string(begin.status().message()));
    Decline(message.tag, std::string(begin.status().message()));
    return;
  }
  const SaveKey key = begin->key();
  if (message.tag.attempt == 0 || !begin->status.ok()) {
    if (session_ != nullptr && session_->key() == key) {
      session_->OnMessage(message);
    } else {
      Refuse(key, begin->status);
    }
    return;
  }
  if (session_ != nullptr && session_->key() < key) {
    // Rank 0 is past the step that this session waits for.
    session_->Skip(absl::UnavailableError(
        absl::StrFormat("saving step %d: skipped: rank 0 is at step %d already",
                        session_->key().step, key.step)));
  }
  if (session_ != nullptr && session_->key() == key &&
      session_->OnMessage(message)) {
    return;
  }
  if (key <= declined_ || (session_ != nullptr && session_->key() >= key)) {
    Decline(message.tag,
            absl::StrFormat("busy: this rank did not begin the save of step "
                            "%d, the one before was not over",
                            key.step));
    return;
  }
  if (early_begin_.has_value()) {
    Decline(early_begin_->tag, "busy: this rank never reached that step");
  }
  early_begin_ = message;
}

bool SaveHost::OnMessage(const Message& message) {
  const MessageTag& tag = message.tag;
  if (tag.incarnation != incarnation_ || incarnation_ == 0) return false;
  if (tag.phase == kPhaseBegin && message.from == Rank{0}) {
    OnBegin(message);
    return true;
  }
  if (tag.phase == kPhaseFile) {
    if (message.from == plans_->leader()) {
      file_attempt_ = std::max(file_attempt_, tag.attempt);
    }
    return true;
  }
  if (session_ != nullptr && session_->OnMessage(message)) return true;
  if (tag.phase == kPhaseOutcome && early_begin_.has_value() &&
      early_begin_->tag.attempt == tag.attempt) {
    // Over before this rank got there: lost, by the reason that all hear.
    const absl::StatusOr<BeginMessage> begin = DecodeBegin(early_begin_->body);
    const absl::StatusOr<OutcomeMessage> outcome = DecodeOutcome(message.body);
    if (begin.ok()) {
      Refuse(begin->key(),
             outcome.ok() && !outcome->status.ok()
                 ? outcome->status
                 : absl::UnavailableError(absl::StrFormat(
                       "saving step %d: skipped: rank 0 ended it before this "
                       "rank got there",
                       begin->id.step)));
    }
    Decline(tag, "busy: this rank had not reached that step");
    early_begin_.reset();
    return true;
  }
  if (tag.phase == kPhaseDone) {
    for (size_t i = 0; i < unsettled_.size(); ++i) {
      if (unsettled_[i].id.attempt != tag.attempt) continue;
      unsettled_[i].ranks.erase(Index(message.from));
      if (unsettled_[i].ranks.empty()) {
        ledger_.aborted.push_back(unsettled_[i].id);
        unsettled_.erase(unsettled_.begin() + i);
        retention_due_ = true;
      }
      return true;
    }
  }
  return tag.phase == kPhaseVote || tag.phase == kPhaseOutcome ||
         tag.phase == kPhaseDone || tag.phase == kPhasePart;  // late: dropped
}

bool SaveHost::OnCompletion(const Completion& completion) {
  const uint16_t space = SpaceOf(completion.tag);
  if (session_ != nullptr && session_spaces_.contains(space)) {
    session_->OnCompletion(completion);
    return true;
  }
  if (retention_ != nullptr && space == retention_space_) {
    retention_->OnCompletion(completion);
    return true;
  }
  return false;
}

void SaveHost::Poll() {
  if (session_ != nullptr) {
    session_->OnFile(file_attempt_);
    session_->Poll();
    if (session_->done()) {
      Finish();
    } else if (!told_ && session_->DecidedFor().value_or(absl::ZeroDuration()) >
                             2 * options_.save.coordinator.settle_timeout) {
      told_ = true;
      result_ = session_->result();
    }
  }
  if (retention_ != nullptr) {
    retention_->Poll();
    if (retention_->done()) FinishRetention();
  } else if (retention_due_) {
    StartRetention();
  }
}

void SaveHost::Finish() {
  const SaveResult& result = session_->result();
  declined_ = std::max(declined_, session_->key());
  if (const SaveCoordinator* const coordinator = session_->coordinator()) {
    const CheckpointId id = coordinator->order().id;
    switch (coordinator->outcome()->outcome) {
      case SaveOutcome::kCommitted:
        parent_ = id;
        if (!options_.canary_retire_before_commit) {
          ledger_.committed.push_back(id);
        }
        ledger_.committed_unix_ms[id] =
            absl::ToUnixMillis(env_.clock->WallTime());
        break;
      case SaveOutcome::kUnknown:
        ledger_.unknown.push_back(id);
        break;
      default:
        if (!coordinator->begun()) {
          if (coordinator->made_dir()) ledger_.aborted.push_back(id);
          break;
        }
        const std::vector<int> undone = coordinator->UndoneRanks();
        if (undone.empty()) {
          ledger_.aborted.push_back(id);
        } else {
          unsettled_.push_back({id, {undone.begin(), undone.end()}});
        }
        break;
    }
    retention_due_ = true;
  } else if (result.outcome == SaveOutcome::kCommitted) {
    parent_ = result.id;
  }
  if (!std::exchange(told_, false)) result_ = result;
  session_.reset();
}

std::optional<SaveResult> SaveHost::TakeResult() {
  return std::exchange(result_, std::nullopt);
}

std::optional<RetentionOutcome> SaveHost::TakeRetention() {
  return std::exchange(retention_outcome_, std::nullopt);
}

void SaveHost::StartRetention() {
  retention_due_ = false;
  SessionEnv env = WithOps(env_, kRetentionOps);
  env.space = retention_space_ = NewSpace();
  retention_ =
      std::make_unique<RetentionSession>(env, ledger_, options_.retention);
}

void SaveHost::FinishRetention() {
  const RetentionOutcome& outcome = retention_->outcome();
  const auto gone = [](std::vector<CheckpointId>& ids,
                       const std::vector<CheckpointId>& removed) {
    std::erase_if(ids, [&](const CheckpointId& id) {
      return std::find(removed.begin(), removed.end(), id) != removed.end();
    });
  };
  gone(ledger_.committed, outcome.removed);
  gone(ledger_.aborted, outcome.swept);
  for (const CheckpointId& id : outcome.removed) {
    ledger_.committed_unix_ms.erase(id);
  }
  if (!outcome.status.ok() || !outcome.removed.empty() ||
      !outcome.swept.empty()) {
    retention_outcome_ = outcome;
  }
  retention_.reset();
}

}  // namespace holdfast::ckpt

// ckpt/session/save_session.h: one rank's part in one save, from the snapshot
// to the outcome; on rank 0 with the coordinator inside.
//
//   waiting   for rank 0's Begin
//   writing   its file (save_writer.h)
//   voted     yes; waiting for the outcome
//   ending    the outcome is known; the last calls are answered; Done
//
// Where ranks share a file its leader tells the others when it is there, and
// they tell him when their parts are durable, before they vote.
//
// A rank that fails says no at once and ends as soon as its storage has
// answered; it needs no outcome to know that there is no checkpoint.
//
// Thread: the ckpt thread. Cost: messages and, on rank 0, the manifest; the
// rest is the writer's.

#ifndef HOLDFAST_CKPT_SESSION_SAVE_SESSION_H_
#define HOLDFAST_CKPT_SESSION_SAVE_SESSION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ckpt/session/save_coordinator.h"
#include "ckpt/session/save_messages.h"
#include "ckpt/session/save_plans.h"
#include "ckpt/session/save_writer.h"
#include "ckpt/session/session.h"
#include "ckpt/snapshot/snapshot.h"

namespace holdfast::ckpt {

struct SaveOptions {
  // From the start of a session to rank 0's Begin.
  absl::Duration begin_timeout = absl::Minutes(1);
  // From the own yes to the outcome: the coordinator's patience and more, since
  // it begins to count when its own file is done.
  absl::Duration outcome_timeout = absl::Minutes(5);
  CoordinatorOptions coordinator;
  SaveWriterOptions writer;

  // Canaries of the tests; each breaks a rule that a sweep must notice.
  bool canary_vote_before_sync = false;
  bool canary_remove_after_yes = false;
};

struct SaveResult {
  CheckpointId id;  // attempt 0: never begun
  SaveOutcome outcome = SaveOutcome::kAborted;
  absl::Status status;       // OK exactly when committed
  uint64_t bytes = 0;        // that this rank wrote
  uint64_t bytes_total = 0;  // rank 0
  absl::Duration total;      // session start to outcome
  absl::Duration write_time;
};

class SaveSession final : public Session {
 public:
  // The snapshot is armed; the session releases it. `env.space` is the
  // writer's, `order` (rank 0 only) comes with the space of the coordinator.
  // `parent` is for messages.
  SaveSession(const SessionEnv& env, SavePlans* plans, Snapshot* snapshot,
              SaveWriter* writer, uint32_t incarnation, RunId run_id,
              SaveKey key, std::optional<CheckpointId> parent,
              const SaveOptions& options);

  // Rank 0: also coordinate. Before the first Poll.
  void Coordinate(const SessionEnv& env, SaveOrder order);

  void OnCompletion(const Completion& completion) override;
  bool OnMessage(const Message& message) override;
  void Poll() override;
  bool done() const override;

  const SaveKey& key() const { return key_; }
  // The leader of this rank's file has made it, in that attempt; in others
  // nothing happens, and once is enough.
  void OnFile(uint32_t attempt);
  // Rank 0 goes without this step, or is past it already.
  void Skip(absl::Status why);
  // The result is known, for so long already; calls may still be unanswered.
  std::optional<absl::Duration> DecidedFor() const;
  const SaveResult& result() const { return result_; }  // once decided
  const SaveCoordinator* coordinator() const {
    return coordinator_.has_value() ? &*coordinator_ : nullptr;
  }

 private:
  enum class State { kWaiting, kWriting, kVoted, kEnding, kEnded };

  void OnBegin(const BeginMessage& begin);
  void OnOutcome(OutcomeMessage outcome);
  void OnPart(const Message& message);
  void CheckFile(absl::Duration now);
  void VoteYes();
  void VoteNo();
  void End(SaveOutcome outcome, absl::Status status);
  void Send(uint32_t phase, std::span<const std::byte> body);
  absl::Status Explain(const absl::Status& own) const;

  const SessionEnv env_;
  SavePlans* const plans_;
  Snapshot* const snapshot_;
  SaveWriter* const writer_;
  const uint32_t incarnation_;
  const RunId run_id_;
  const SaveKey key_;
  const std::optional<CheckpointId> parent_;
  const SaveOptions options_;

  State state_ = State::kWaiting;
  std::optional<SaveCoordinator> coordinator_;
  uint16_t coordinator_space_ = 0;
  absl::Duration started_at_;
  absl::Duration deadline_;
  absl::Duration ended_at_;
  bool file_told_ = false;  // to those that share it
  bool removing_ = false;   // the canary's
  SaveResult result_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_SAVE_SESSION_H_

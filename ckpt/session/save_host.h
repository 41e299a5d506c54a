// ckpt/session/save_host.h: all saves of one rank in one incarnation, one after
// the other, and on rank 0 the retention behind them.
//
// Ranks may disagree for a moment about whether a save can begin: one is still
// busy with the save before, one has not reached the step yet. Rank 0 alone
// numbers attempts, so it decides:
//
//   a rank that cannot begin     Skip(step): says no to the Begin of that step
//   rank 0 cannot begin          Skip(step): tells the others, who end kSkipped
//   Begin before the step        kept until the step thread gets there
//
//   a file before the Begin      the leader of a shared file is ahead of rank
//   0's
//                                words, or of this rank: kept, by its attempt
//
// An attempt that was aborted may be swept when every rank that got its Begin
// has said Done, however late. One whose outcome is unknown is not swept by
// this incarnation.
//
// Thread: the ckpt thread. One storage serves the save and the retention.

#ifndef HOLDFAST_CKPT_SESSION_SAVE_HOST_H_
#define HOLDFAST_CKPT_SESSION_SAVE_HOST_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/session/retention_session.h"
#include "ckpt/session/save_plans.h"
#include "ckpt/session/save_session.h"
#include "ckpt/session/save_writer.h"
#include "ckpt/session/session.h"
#include "ckpt/snapshot/snapshot.h"

namespace holdfast::ckpt {

struct SaveHostOptions {
  SaveOptions save;
  RetentionPolicy retention;

  // Canaries of the tests: attempts are not numbered; what retention may take
  // is decided before the commit.
  bool canary_reuse_attempt = false;
  bool canary_retire_before_commit = false;
};

class SaveHost {
 public:
  // The host uses env.ops_max calls in flight and tag spaces from env.space up,
  // at most `spaces` of them (at least 8).
  static constexpr size_t kOpsMin = 8;
  SaveHost(const SessionEnv& env, uint16_t spaces, SavePlans* plans,
           Snapshot* snapshot, const SaveHostOptions& options);

  // The run is ours: after the owner session, before the first Begin. `parent`
  // is the checkpoint that was loaded from this run, `ledger` (rank 0) what the
  // seal says.
  void OwnRun(RunId run_id, uint32_t incarnation,
              std::optional<CheckpointId> parent, RunLedger ledger);

  // Memory for Storage::RegisterBuffers, besides the snapshot's.
  std::array<std::span<std::byte>, 2> blocks() { return writer_.blocks(); }

  // The snapshot is armed and is released by the end of the save. Not busy().
  void Begin(int64_t step, std::map<std::string, std::string> attributes);

  // This rank does not save at `step`.
  void Skip(int64_t step);

  bool OnMessage(const Message& message);
  bool OnCompletion(const Completion& completion);
  void Poll();

  bool busy() const { return session_ != nullptr; }
  // There are bytes to hash now: Poll again at once.
  bool eager() const { return writer_.eager(); }
  // Writes and syncs whose answers the save waits for.
  bool writing() const { return !writer_.finished(); }
  // The save that has ended, once. If calls of a failed one stay unanswered,
  // its result comes all the same, and the host stays busy().
  std::optional<SaveResult> TakeResult();
  // Calls are unanswered that nobody waits for any more (retention included).
  bool retiring() const { return retention_ != nullptr; }
  // What the retention said last, once, when it failed or removed something.
  std::optional<RetentionOutcome> TakeRetention();

  const RunLedger& ledger() const { return ledger_; }
  const std::optional<CheckpointId>& newest_committed() const {
    return parent_;
  }

 private:
  SaveKey NextKey(int64_t step);
  // A Begin that this rank does not or will not follow.
  void Decline(const MessageTag& tag, const std::string& why);
  void Refuse(const SaveKey& key, absl::Status why);
  void OnBegin(const Message& message);
  void Finish();
  void StartRetention();
  void FinishRetention();
  uint16_t NewSpace();
  bool is_zero() const { return env_.group->rank() == Rank{0}; }

  const SessionEnv env_;
  const uint16_t spaces_;
  SavePlans* const plans_;
  Snapshot* const snapshot_;
  const SaveHostOptions options_;
  SaveWriter writer_;
  uint16_t last_space_ = 0;

  RunId run_id_{};
  uint32_t incarnation_ = 0;
  std::optional<CheckpointId> parent_;
  uint32_t last_attempt_ = 0;
  uint64_t last_commit_ = 0;

  std::unique_ptr<SaveSession> session_;
  std::set<uint16_t> session_spaces_;
  std::optional<SaveResult> result_;
  bool told_ = false;  // the session's result, before its end

  SaveKey last_key_;
  // The newest save that this rank has ended or skipped: no Begin up to it will
  // be followed any more.
  SaveKey declined_;
  // Saves that rank 0 has skipped or ended before this rank got there.
  struct Refused {
    SaveKey key;
    absl::Status why;
  };
  std::deque<Refused> refused_;  // the newest few
  std::optional<Message> early_begin_;
  // The newest attempt whose file the leader of this rank's has made.
  uint32_t file_attempt_ = 0;

  // Rank 0.
  RunLedger ledger_;
  struct Unsettled {
    CheckpointId id;
    std::set<int> ranks;  // that have not said Done
  };
  std::vector<Unsettled> unsettled_;
  std::unique_ptr<RetentionSession> retention_;
  uint16_t retention_space_ = 0;
  bool retention_due_ = false;
  std::optional<RetentionOutcome> retention_outcome_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_SAVE_HOST_H_

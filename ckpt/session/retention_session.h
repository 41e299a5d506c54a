// ckpt/session/retention_session.h: takes old checkpoints and dead attempts
// away. Rank 0 only, off the path of a save, one at a time.
//
// A checkpoint goes in an order that a power cut may end anywhere: MANIFEST,
// its directory's sync, the shards, the directory. From the first step on it is
// an attempt that nobody offers.
//
// What may go, and nothing else:
//   - a checkpoint on the line that is neither among the newest keep_last
//     committed ones, nor at a multiple of keep_every, nor one of the two that
//     keep_older_s asks for
//   - a superseded one, once this incarnation has committed keep_last of its
//   own
//   - an attempt without a manifest of an earlier incarnation (the seal is
//     there), or of this one if the caller says that it was aborted
// Never: the newest committed one; whatever `unknown` names. An owner that
// finds a newer claim has lost the run and touches nothing.
//
// A person who prunes (prune_session.h) is an owner that commits nothing: then
// the line of its seal is judged as it stands, superseded ones go at once, or
// exactly what was chosen goes.
//
// Thread: the storage's owner. Cost: a list and a few removes a save.

#ifndef HOLDFAST_CKPT_SESSION_RETENTION_SESSION_H_
#define HOLDFAST_CKPT_SESSION_RETENTION_SESSION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/base/types.h"
#include "ckpt/session/io.h"
#include "ckpt/session/run_files.h"
#include "ckpt/session/session.h"
#include "ckpt/session/task.h"

namespace holdfast::ckpt {

struct RetentionPolicy {
  int keep_last = 3;       // at least 1; kKeepAll
  int64_t keep_every = 0;  // 0: none
  // Keeps the newest that is at least so old, for what is noticed late, and the
  // oldest younger one, which takes its place in time: without it the next one
  // would be gone before it is old enough. So one of up to twice this age is
  // there. 0: none.
  int64_t keep_older_s = 0;
};

// What rank 0 knows of the run, kept by the host over the job's life.
struct RunLedger {
  RunId run_id{};
  uint32_t incarnation = 0;
  OwnerSeal seal;                       // as put
  std::vector<CheckpointId> committed;  // by this incarnation, in order
  std::vector<CheckpointId> unknown;    // of this incarnation
  std::vector<CheckpointId> aborted;    // attempts told aborted, to be swept
  // When those on the line were committed; what is missing counts as just now.
  // The time of day of several hosts: it only ever keeps more.
  std::map<CheckpointId, int64_t> committed_unix_ms;
  // This owner is a person's: nothing will be committed that what the seal
  // lists would have to wait for.
  bool by_hand = false;
  // by_hand: these alone, whatever the policy says; empty: what it says.
  std::vector<CheckpointId> chosen;
  // by_hand: stay, whatever the policy says.
  std::vector<CheckpointId> kept;
};

// Pure: the ids of `ledger` whose time has come, oldest first.
std::vector<CheckpointId> PlanRetention(const RunLedger& ledger,
                                        const RetentionPolicy& policy,
                                        int64_t now_unix_ms);

struct RetentionOutcome {
  absl::Status status;  // the first error; what failed is tried again next time
  std::vector<CheckpointId> removed;  // checkpoints
  std::vector<CheckpointId> swept;    // attempts
};

class RetentionSession final : public Session {
 public:
  RetentionSession(const SessionEnv& env, RunLedger ledger,
                   RetentionPolicy policy);

  void OnCompletion(const Completion& completion) override;
  bool OnMessage(const Message& message) override;  // takes none
  void Poll() override;
  bool done() const override;
  const RetentionOutcome& outcome() const { return outcome_; }

 private:
  Task<bool> Run();
  Task<absl::Status> RemoveTree(std::string dir, bool has_manifest);
  Task<absl::Status> RemoveAll(std::string dir,
                               const std::vector<DirEntry>* entries);

  Clock* const clock_;
  Io io_;
  Fiber fiber_;
  const RunLedger ledger_;
  const RetentionPolicy policy_;
  RetentionOutcome outcome_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_RETENTION_SESSION_H_

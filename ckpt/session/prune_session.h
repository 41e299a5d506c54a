// ckpt/session/prune_session.h: retention by hand, of a run that no job saves
// into.
//
// Only an owner may delete, so a person who prunes becomes one, as a job would:
//
//   1 claims the next incarnation, with a world of 0 ranks
//   2 adopts the line: renames what counts, so that no earlier owner reaches it
//   3 seals the same line, with the same head
//   4 removes, as retention does (retention_session.h)
//
// Every step may be the last: before the seal nothing has changed for a reader,
// after it the line is what it was, and what is left half removed is an
// attempt. A job that still believes to own the run finds the newer claim
// before it commits or removes, and stops with kFailedPrecondition; so a caller
// that can tell that one is alive does not come here.
//
// PlanPrune is pure and says what would happen. Thread: the storage's owner.

#ifndef HOLDFAST_CKPT_SESSION_PRUNE_SESSION_H_
#define HOLDFAST_CKPT_SESSION_PRUNE_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/session/catalog.h"
#include "ckpt/session/io.h"
#include "ckpt/session/retention_session.h"
#include "ckpt/session/run_files.h"
#include "ckpt/session/session.h"
#include "ckpt/session/task.h"

namespace holdfast::ckpt {

struct PruneOptions {
  RetentionPolicy policy;
  // This one and nothing else, whatever the policy says; never the newest.
  std::optional<CheckpointId> only;
  // The run's newest claim when its owner was found to be gone: with a newer
  // one a job has begun since, from which the run is not taken.
  std::optional<uint32_t> newest_claim;
};

struct PruneEntry {
  size_t index = 0;  // in the catalog's entries
  bool goes = false;
  std::string why;  // "older than the newest 3", "a multiple of 100"
};

struct PrunePlan {
  std::vector<PruneEntry> entries;  // one for each of the catalog's, in order
  RunLedger ledger;                 // as RetentionSession wants it
};

// What goes of a run and what stays. Damaged checkpoints, and those of a newer
// format, stay unless `only` names them.
//
// kNotFound: the run has no whole checkpoint, and what is there stays for a
// person to look at. kFailedPrecondition: nobody has sealed the run, or a seal
// is lost, or its newest checkpoint needs a newer program: then nobody knows
// what counts; or `only` is the newest.
absl::StatusOr<PrunePlan> PlanPrune(const Catalog& catalog,
                                    const PruneOptions& options,
                                    int64_t now_unix_ms);

// Steps 1 to 3. Its result is the ledger that RetentionSession then works by.
class PruneClaimSession final : public Session {
 public:
  // `who`: host, pid and mark; the rest of the claim is filled in.
  PruneClaimSession(const SessionEnv& env, PruneOptions options,
                    OwnerClaim who);
  void OnCompletion(const Completion& completion) override;
  bool OnMessage(const Message& message) override;  // takes none
  void Poll() override;
  bool done() const override;
  const absl::StatusOr<RunLedger>& result() const { return result_; }

 private:
  Task<bool> Run();
  Task<absl::StatusOr<RunLedger>> Take();

  Clock* const clock_;
  Io io_;
  const PruneOptions options_;
  OwnerClaim claim_;
  absl::StatusOr<RunLedger> result_ = absl::UnknownError("not claimed yet");
  Fiber fiber_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_PRUNE_SESSION_H_

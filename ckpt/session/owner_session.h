// ckpt/session/owner_session.h: a job takes a run, agrees on a checkpoint and
// loads it. One for each rank, at start; nothing is saved before it is done.
//
//   rank 0                                         every other rank
//   wait for all hellos                     <-     hello (fingerprint, plan)
//   read the catalog, ask `validate`
//   preflight: a file in the directory      ->     read it, try to write
//   enough space?                           <-     report
//   claim the next incarnation (put-if-absent)
//   adopt what counts: rename to ".oNNNN"
//   choice: identity, directory, manifest   ->     see the same run?
//   load its part              <- pieces ->        load its part
//   decide                                  <-     report
//   verdict: use it, again, or the one before ->   ...
//   seal (put-if-absent), tell              ->     done
//
// Every step may be the last one that a process takes. A claim without a seal
// counts for nothing and changes nothing; a half-done adoption has moved
// directories that are found by their id, whatever their suffix; the seal
// appears whole or not at all.
//
// Damage that one rank finds is looked at again by rank 0: damaged there too,
// it is the checkpoint's, and all ranks step back to the one before it on the
// line, which the seal records; whole there, it is that rank's, and the load is
// tried again, then stops with kUnavailable naming rank and host.
//
// A rank that fails is not waited for by those that it reads for: rank 0 tells
// all ranks that the try is over. When it was the exchange of what is read that
// failed, the next try is one in which each rank reads alone.
//
// Thread: the ckpt thread. Memory: a manifest, a load's.

#ifndef HOLDFAST_CKPT_SESSION_OWNER_SESSION_H_
#define HOLDFAST_CKPT_SESSION_OWNER_SESSION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ckpt/base/process.h"
#include "ckpt/base/types.h"
#include "ckpt/layout/holding.h"
#include "ckpt/session/load_session.h"
#include "ckpt/session/run_files.h"
#include "ckpt/session/save_plans.h"
#include "ckpt/session/session.h"

namespace holdfast::ckpt {

enum class ResumeMode {
  kAuto,      // the newest whole checkpoint; an empty run starts fresh
  kNever,     // fresh; what is there is listed as superseded
  kRequired,  // kNotFound rather than fresh
  kStep,      // a rewind: the newest on the line at or below `resume_step`
  kClaim,     // the line as it is goes on; nothing is loaded
};

struct OwnerOptions {
  ResumeMode resume = ResumeMode::kAuto;
  int64_t resume_step = 0;

  // Rank 0: the identity of the run if this job creates it (random bits), and
  // who claims.
  RunId run_id_if_new{};
  int64_t pid = 0;
  ProcessMark mark;

  // Must be equal on all ranks; else kFailedPrecondition names the rank.
  std::string fingerprint;

  // Rank 0: why the caller knows that this run has committed before, such as
  // "journal.jsonl says that step 120 was saved"; "" when it does not. With no
  // checkpoint to be found this makes a fresh start kNotFound.
  std::string committed_proof;

  // What this job will save; the host sets it. Its hash and the options in
  // words must be equal on all ranks, and `keep_last` saves must fit; null:
  // nothing is asked about saves.
  SavePlans* plans = nullptr;
  std::string save_options;
  int64_t keep_last = 1;
  // Rank 0: random bits that no other start has. 0: there is no look at the
  // directory before the claim (preflight.h).
  uint64_t nonce = 0;

  // Can this job continue from a checkpoint with these attributes? Asked on
  // rank 0 before anything is touched and on every rank before the load, but
  // not where only weights are taken. Null: yes.
  std::function<absl::Status(const std::map<std::string, std::string>&)>
      validate;

  // A checkpoint elsewhere that a fresh run takes its state from: the storage
  // has the directory `init_dir` ("." for its root). The session uses
  // `init_env` for it, whose completions its host routes here as well.
  std::optional<SessionEnv> init_env;
  std::string init_dir;
  bool init_weights_only = false;  // only items of kind "weight"

  absl::Duration hello_timeout = absl::Minutes(2);
  // All of it. A storage that has still not answered a little later ends the
  // session too, with its calls unanswered.
  absl::Duration load_timeout = absl::Minutes(10);
  int load_tries = 3;  // of one checkpoint that is unavailable
  absl::Duration retry_wait = absl::Seconds(2);
  UnitReaderOptions reader;
  // Ranks send each other what they read, so that the whole job reads each byte
  // once. Rank 0's word counts; `exchange` must be the same on all ranks.
  bool share = true;
  // Its `silence` is at most a fifth of load_timeout, so that a try without
  // sharing can follow.
  ExchangeOptions exchange;

  // Canary of the tests: choose without looking at the seal.
  bool canary_ignore_seal = false;
};

struct LoadedCheckpoint {
  CheckpointId id;
  uint64_t commit_number = 0;
  uint32_t world = 0;
  std::string layout;  // "tp2-pp2-dp2"
  std::map<std::string, std::string> attributes;
  bool from_init = false;  // not of this run: it is nobody's parent
};

struct OwnerResult {
  // OK: the run is ours and the target holds `loaded` (nothing: fresh). Else
  // the same code on every rank that could be told.
  absl::Status status;
  RunId run_id{};
  uint32_t incarnation = 0;
  std::optional<LoadedCheckpoint> loaded;
  std::optional<CheckpointId> claimed;  // kClaim: the newest, if there is one
  std::vector<SupersededCheckpoint> stepped_over;  // by this start
  std::vector<std::string> notes;  // loud lines for people, rank 0
  uint64_t bytes_wanted = 0;       // by this rank
  uint64_t bytes_read = 0;
  uint64_t bytes_received = 0;  // from ranks that had read them
  double load_seconds = 0;
  // What the checkpoint's files have of the items that were taken.
  uint64_t bytes_stored = 0;
  // Rank 0: the whole job, in the try that went well.
  uint64_t job_bytes_read = 0;
  uint64_t job_bytes_received = 0;
  // Rank 0: what retention starts from.
  OwnerSeal seal;
  std::map<CheckpointId, int64_t> committed_unix_ms;  // of the seal's line
};

class OwnerSession final : public Session {
 public:
  // Pointers outlive the session. `layout` gives items and what this rank
  // wants; the bytes go to `target`.
  OwnerSession(const SessionEnv& env, const JobLayout* layout,
               const LoadTarget* target, OwnerOptions options);
  ~OwnerSession() override;

  void OnCompletion(const Completion& completion) override;
  bool OnMessage(const Message& message) override;
  void Poll() override;
  bool done() const override;

  LoadProgress progress() const;
  // The load goes on when other ranks' messages come, not by the storage.
  bool waits_for_ranks() const;
  const OwnerResult& result() const;  // after done()

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_OWNER_SESSION_H_

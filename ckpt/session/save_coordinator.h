// ckpt/session/save_coordinator.h: rank 0's part in one save: the directory,
// the votes, the commit, the outcome.
//
//   make the attempt's directory
//   Begin to all                           they write; rank 0 plans for all
//   sync checkpoints/                      answered before the commit
//   all yes                                else: aborted, at the first no
//   no newer claim in owners/              else: this job has lost the run
//   PutIfAbsent(MANIFEST)                  THE commit
//   Outcome to all; wait a little for their Done
//
// Thread: the ckpt thread. Memory: a manifest.

#ifndef HOLDFAST_CKPT_SESSION_SAVE_COORDINATOR_H_
#define HOLDFAST_CKPT_SESSION_SAVE_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/format/manifest.h"
#include "ckpt/session/io.h"
#include "ckpt/session/save_messages.h"
#include "ckpt/session/save_plans.h"
#include "ckpt/session/session.h"
#include "ckpt/session/task.h"

namespace holdfast::ckpt {

// What rank 0 knows of a save before it begins.
struct SaveOrder {
  RunId run_id{};
  CheckpointId id;
  uint32_t repeat = 0;  // of the step, see SaveKey
  uint64_t commit_number = 0;
  std::optional<CheckpointId> parent;  // the newest committed
  std::map<std::string, std::string> attributes;
};

struct CoordinatorOptions {
  // From rank 0's own vote to everybody's.
  absl::Duration vote_timeout = absl::Minutes(2);
  // For each answer of the storage that the outcome waits for.
  absl::Duration io_timeout = absl::Minutes(2);
  // For the Dones after the outcome; who is later keeps his attempt from being
  // swept, nothing else.
  absl::Duration settle_timeout = absl::Seconds(5);
};

// "; this save is abandoned, training goes on, step 120 is still whole"
std::string WhatNext(const std::optional<CheckpointId>& parent);

class SaveCoordinator {
 public:
  SaveCoordinator(const SessionEnv& env, SavePlans* plans, SaveOrder order,
                  const CoordinatorOptions& options);

  void OnCompletion(const Completion& completion) {
    io_.OnCompletion(completion);
  }
  // Votes and Dones of this attempt.
  bool OnMessage(const Message& message);
  void Poll();
  bool done() const { return fiber_.done() && io_.idle(); }

  const SaveOrder& order() const { return order_; }
  // After the outcome was told.
  const std::optional<OutcomeMessage>& outcome() const { return outcome_; }
  absl::Duration decided_at() const { return decided_at_; }
  // Ranks that may still touch the attempt: those that got a Begin and have not
  // said Done.
  std::vector<int> UndoneRanks() const;
  // Of the files that were voted for, as stored.
  uint64_t bytes_total() const;
  // False: no message of this attempt was sent, since the directory, or one in
  // it, could not be made.
  bool begun() const { return begun_; }
  bool made_dir() const { return made_dir_; }

 private:
  Task<bool> Run();
  Task<OutcomeMessage> Decide();
  Task<bool> LookAtClaims();  // its own steps, so that it can be given up
  absl::Status CheckVote(Rank rank, const VoteMessage& vote) const;
  absl::Status Missing() const;
  Manifest BuildManifest() const;
  void Tell(uint32_t phase, std::span<const std::byte> body);
  absl::Status Doing(absl::StatusCode code, const std::string& text) const;

  const SessionEnv env_;
  SavePlans* const plans_;
  const SaveOrder order_;
  const CoordinatorOptions options_;
  Io io_;
  Fiber fiber_;
  Fiber look_fiber_;
  std::optional<absl::StatusOr<uint32_t>> claim_;

  bool made_dir_ = false;
  bool begun_ = false;
  std::vector<std::optional<VoteMessage>> votes_;  // the yes ones
  size_t yes_count_ = 0;
  absl::Status first_no_;
  std::optional<absl::Duration> vote_deadline_;
  std::vector<bool> done_ranks_;
  size_t done_count_ = 0;
  std::optional<OutcomeMessage> outcome_;
  absl::Duration decided_at_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_SAVE_COORDINATOR_H_

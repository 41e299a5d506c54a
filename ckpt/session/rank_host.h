// ckpt/session/rank_host.h: all sessions of one rank over one storage and one
// group: first the claim and the load, then the saves.
//
// Polls the two, hands each answer and each message to the session that it
// belongs to, and lets the sessions go on. The checkpoint thread calls Poll in
// its loop (ckpt/ckpt_thread.h), the simulator in seed order: the same code
// under both.
//
// Thread: the storage's owner.

#ifndef HOLDFAST_CKPT_SESSION_RANK_HOST_H_
#define HOLDFAST_CKPT_SESSION_RANK_HOST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ckpt/layout/holding.h"
#include "ckpt/session/load_session.h"
#include "ckpt/session/owner_session.h"
#include "ckpt/session/save_host.h"
#include "ckpt/session/save_plans.h"
#include "ckpt/session/session.h"
#include "ckpt/snapshot/snapshot.h"

namespace holdfast::ckpt {

class RankHost {
 public:
  // `env`: space is not used, ops_max is what all sessions share (at least
  // SaveHost::kOpsMin). Everything outlives the host.
  RankHost(const SessionEnv& env, SavePlans* plans, Snapshot* snapshot,
           const SaveHostOptions& options);

  // Starts an owner session over `layout` into `target`; what it must know of
  // saves is filled in here. Once.
  void Claim(const JobLayout* layout, const LoadTarget* target,
             OwnerOptions options);
  // A second storage whose answers go to the owner session (init_env).
  static constexpr uint16_t kInitSpace = 2;
  void PollAlso(Storage* storage) { also_ = storage; }

  bool claiming() const { return owner_ != nullptr && !owned_; }
  LoadProgress load_progress() const { return owner_->progress(); }
  bool load_waits_for_ranks() const {
    return claiming() && owner_->waits_for_ranks();
  }
  // After the owner session has ended, once. When its status is OK saves may
  // begin.
  std::optional<OwnerResult> TakeOwnerResult();

  SaveHost& saves() { return saves_; }
  const SaveHost& saves() const { return saves_; }

  // True when something was done: it is worth to poll again at once.
  bool Poll();

 private:
  bool PollStorage(Storage* storage);
  bool PollGroup();
  void PollSessions();
  void OnMessage(const Message& message);

  const SessionEnv env_;
  SavePlans* const plans_;
  const int64_t keep_last_;
  SaveHost saves_;
  std::unique_ptr<OwnerSession> owner_;
  Storage* also_ = nullptr;
  bool owned_ = false;  // the owner session has ended
  std::optional<OwnerResult> owner_result_;
  // Of saves, that came before this rank's owner session had ended.
  std::vector<Message> early_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_RANK_HOST_H_

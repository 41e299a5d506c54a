// ckpt/session/rank_host.cc: see rank_host.h.

#include "ckpt/session/rank_host.h"

#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/session/messages.h"

namespace holdfast::ckpt {
namespace {

// Tag spaces: the owner session's, its second storage's (kInitSpace), then the
// saves'.
constexpr uint16_t kOwnerSpace = 1;
constexpr uint16_t kSaveSpace = 16;
constexpr uint16_t kSaveSpaces = 4096;

SessionEnv WithSpace(SessionEnv env, uint16_t space) {
  env.space = space;
  return env;
}

}  // namespace

RankHost::RankHost(const SessionEnv& env, SavePlans* plans, Snapshot* snapshot,
                   const SaveHostOptions& options)
    : env_(env),
      plans_(plans),
      keep_last_(options.retention.keep_last),
      saves_(WithSpace(env, kSaveSpace), kSaveSpaces, plans, snapshot,
             options) {}

void RankHost::Claim(const JobLayout* layout, const LoadTarget* target,
                     OwnerOptions options) {
  HF_CHECK(owner_ == nullptr, "a job claims its run once");
  options.plans = plans_;
  // Whoever keeps all makes room by hand: the next save must fit.
  options.keep_last = keep_last_ == kKeepAll ? 1 : keep_last_;
  owner_ = std::make_unique<OwnerSession>(WithSpace(env_, kOwnerSpace), layout,
                                          target, std::move(options));
}

std::optional<OwnerResult> RankHost::TakeOwnerResult() {
  return std::exchange(owner_result_, std::nullopt);
}

bool RankHost::Poll() {
  bool progress = PollStorage(env_.storage);
  if (also_ != nullptr) progress |= PollStorage(also_);
  progress |= PollGroup();
  PollSessions();
  return progress || saves_.eager();
}

bool RankHost::PollStorage(Storage* storage) {
  std::array<Completion, 16> completions;
  const size_t count = storage->Poll(completions);
  for (size_t i = 0; i < count; ++i) {
    const Completion& completion = completions[i];
    const uint16_t space = SpaceOf(completion.tag);
    if (space == kOwnerSpace || space == kInitSpace) {
      owner_->OnCompletion(completion);
    } else {
      HF_CHECK(saves_.OnCompletion(completion),
               "an answer in space %d, which no session has", space);
    }
  }
  return count > 0;
}

// One message, then the sessions: a session may end by one message and the next
// one be for its successor.
bool RankHost::PollGroup() {
  const std::optional<Message> message = env_.group->Poll();
  if (!message.has_value()) return false;
  OnMessage(*message);
  return true;
}

void RankHost::OnMessage(const Message& message) {
  if (owner_ != nullptr && owner_->OnMessage(message)) return;
  if (!owned_ && message.tag.phase >= kPhaseBegin) {
    early_.push_back(message);
    return;
  }
  saves_.OnMessage(message);
}

void RankHost::PollSessions() {
  if (owner_ != nullptr && !owned_) {
    owner_->Poll();
    if (owner_->done()) {
      owned_ = true;
      const OwnerResult& result = owner_->result();
      if (result.status.ok()) {
        std::optional<CheckpointId> parent;
        if (result.loaded.has_value() && !result.loaded->from_init) {
          parent = result.loaded->id;
        } else if (result.claimed.has_value()) {
          parent = result.claimed;
        }
        RunLedger ledger;
        ledger.run_id = result.run_id;
        ledger.incarnation = result.incarnation;
        ledger.seal = result.seal;
        ledger.committed_unix_ms = result.committed_unix_ms;
        saves_.OwnRun(result.run_id, result.incarnation, parent,
                      std::move(ledger));
      }
      owner_result_ = result;
      for (const Message& message : std::exchange(early_, {})) {
        saves_.OnMessage(message);
      }
    }
  }
  saves_.Poll();
}

}  // namespace holdfast::ckpt

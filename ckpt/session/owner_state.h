// ckpt/session/owner_state.h: the inside of OwnerSession, for its files.

#ifndef HOLDFAST_CKPT_SESSION_OWNER_STATE_H_
#define HOLDFAST_CKPT_SESSION_OWNER_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ckpt/format/manifest.h"
#include "ckpt/group/group.h"
#include "ckpt/layout/holding.h"
#include "ckpt/session/catalog.h"
#include "ckpt/session/exchange.h"
#include "ckpt/session/io.h"
#include "ckpt/session/load_session.h"
#include "ckpt/session/owner_choice.h"
#include "ckpt/session/owner_messages.h"
#include "ckpt/session/owner_session.h"
#include "ckpt/session/preflight.h"
#include "ckpt/session/task.h"

namespace holdfast::ckpt {

struct OwnerSession::State {
  State(const SessionEnv& env, const JobLayout* layout,
        const LoadTarget* target, OwnerOptions options);

  // --- Every rank (owner_session.cc) ---------------------------------------
  Task<bool> Run();
  Task<absl::Status> Follow();
  // One try: what this rank makes of a choice.
  Task<ReportMessage> Load(const ChoiceMessage* choice);
  Task<absl::Status> SeeTheRun(RunId run_id);
  // Do the job and the checkpoint agree?
  absl::Status Agree(const Manifest& manifest, ChoiceMessage::Source source);
  HelloMessage OwnHello() const;
  // What a rank wants, in terms of `items`.
  Holding WantedBy(Rank rank) const;
  void Receive(const Message& message);
  void PassOn(std::span<const std::byte> choice);
  // A message of an exchange: to the one that it belongs to, or kept for one
  // that is to come.
  void ReceivePiece(const Message& message);
  void StartExchange(const ChoiceMessage& choice);
  // The try `stop` means is over.
  void OnStop(StopMessage stop);
  void Send(Rank to, uint32_t phase, std::span<const std::byte> body);
  Io& IoOf(ChoiceMessage::Source source) {
    return source == ChoiceMessage::Source::kInit ? *init_io : io;
  }
  bool leads() const { return env.group->rank() == Rank{0}; }
  bool late() const { return env.clock->Monotonic() >= deadline; }
  // The storage does not answer: nothing will go on. Ends the session.
  void GiveUpIfHung();
  void TellAll(const VerdictMessage& message);

  // --- Rank 0 (owner_lead.cc) ------------------------------------------------
  Task<absl::Status> Lead();
  Task<absl::Status> WaitForHellos();
  // Everything that can be refused without touching the run.
  Task<absl::Status> LookFirst();
  absl::Status CompareHello(int rank) const;
  // Before the claim (owner_preflight.cc).
  Task<absl::Status> Preflight();
  Task<absl::Status> ReportsOfPreflight();
  absl::Status WeighPreflight();
  Task<absl::Status> Take();
  Task<absl::Status> LoadAndDecide();
  Task<absl::StatusOr<ChoiceMessage>> MakeChoice(std::optional<size_t> at);
  Task<absl::Status> WaitForReports(uint32_t round);
  // Rank `rank` has failed in this round: nobody may wait for its pieces.
  void StopTry(int rank, const absl::Status& status);
  // The bytes of a try that went well.
  void SumUp();
  // The reports of one round as one status; kDataLoss: the checkpoint's damage.
  Task<absl::Status> Weigh(const ChoiceMessage* choice);
  Task<absl::Status> Confirm(const ChoiceMessage* choice, int rank);
  Task<absl::Status> Seal();
  std::string NameRank(int rank) const;
  // The ranks of `there` that are false did not do `what`.
  absl::Status Missing(const std::vector<bool>& there, absl::Duration waited,
                       const char* what) const;

  const SessionEnv env;
  const JobLayout* const layout;
  const LoadTarget* const target;
  const OwnerOptions options;
  Io io;
  std::optional<Io> init_io;
  const absl::Duration begin;
  absl::Duration deadline;

  // What this rank wants of a load: all items, or those that init takes, and
  // the latter's place among the former.
  std::vector<ItemSpec> items;
  std::vector<std::optional<ItemIndex>> item_index;
  Holding wanted;

  std::optional<PreflightMessage> preflight;
  std::unique_ptr<Loader> loader;      // while a load runs
  uint32_t round_seen = 0;             // of the last try that began here
  std::optional<Exchange> exchange;    // its, if it shares
  std::vector<Message> early_pieces;   // of tries that are to come here
  std::optional<StopMessage> stopped;  // the last that rank 0 has stopped
  std::optional<ChoiceMessage> choice;
  std::optional<VerdictMessage> verdict;
  absl::Status garbled;  // a message that no rank of this build sends
  OwnerResult result;

  // Rank 0.
  std::vector<bool> hello_there;
  std::vector<HelloMessage> hellos;
  std::vector<std::optional<PreflightReport>> preflight_reports;
  uint32_t round = 0;
  bool share = false;        // this round
  bool share_fails = false;  // in an earlier one
  std::vector<std::optional<ReportMessage>> reports;
  Catalog catalog;
  FoundDamaged damaged;
  bool perhaps_late = false;  // rank 0 has seen what another rank has not
  std::optional<size_t> position;

  bool hung = false;
  Fiber fiber;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_OWNER_STATE_H_

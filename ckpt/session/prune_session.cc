// ckpt/session/prune_session.cc: what goes, by whose right.

#include "ckpt/session/prune_session.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/session/owner_choice.h"
#include "ckpt/session/owner_claim.h"
#include "ckpt/session/preflight.h"

namespace holdfast::ckpt {
namespace {

// As for a start: how often the catalog may change under an adoption.
constexpr int kLooksMax = 16;

// Why a checkpoint on the line stays, the `from_newest`-th from its end.
std::string WhyKept(const CatalogEntry& entry, size_t from_newest,
                    const PruneOptions& options) {
  const RetentionPolicy& policy = options.policy;
  if (from_newest == 0) return "the newest";
  if (options.only) return "not the one that is named";
  if (from_newest < static_cast<size_t>(policy.keep_last)) {
    return absl::StrFormat("one of the newest %d", policy.keep_last);
  }
  if (policy.keep_every > 0 && entry.id.step % policy.keep_every == 0) {
    return absl::StrFormat("its step is a multiple of %d", policy.keep_every);
  }
  return "kept for what is noticed late (keep_older)";
}

// Damaged or of a newer format: whole for somebody, perhaps.
bool IsForAPerson(const CatalogEntry& entry) {
  return entry.state == EntryState::kDamaged ||
         entry.state == EntryState::kNewer;
}

absl::Status CheckMayPrune(const Catalog& catalog,
                           const PruneOptions& options) {
  if (!catalog.run_id || !catalog.seal) {
    return absl::FailedPreconditionError(
        "no owner has sealed this run, so nobody knows which of its "
        "checkpoints count; nothing is removed");
  }
  if (!catalog.seal_lost.empty()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s; nobody knows what counts, and nothing is removed",
                        catalog.seal_lost));
  }
  if (catalog.line.empty()) {
    return absl::NotFoundError(
        "the run has no whole checkpoint; what is there stays for a person to "
        "look at");
  }
  for (const size_t index : catalog.line_all) {
    const CatalogEntry& entry = catalog.entries[index];
    if (entry.state != EntryState::kNewer) continue;
    return absl::FailedPreconditionError(
        absl::StrFormat("%s, on the run's line, cannot be read by this "
                        "program: %s; prune with the one that wrote it",
                        entry.dir, entry.reason));
  }
  if (!options.only) return absl::OkStatus();
  if (*options.only == catalog.newest()->id) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is the run's newest checkpoint, which is never "
                        "removed; a run as a whole goes with rm -r",
                        ToString(*options.only)));
  }
  if (catalog.Find(*options.only) == nullptr) {
    return absl::NotFoundError(
        absl::StrFormat("the run has no %s", ToString(*options.only)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PrunePlan> PlanPrune(const Catalog& catalog,
                                    const PruneOptions& options,
                                    int64_t now_unix_ms) {
  const absl::Status may = CheckMayPrune(catalog, options);
  if (!may.ok()) return may;
  PrunePlan plan;
  RunLedger& ledger = plan.ledger;
  ledger.run_id = *catalog.run_id;
  ledger.by_hand = true;
  ledger.seal = MakeSeal(catalog, catalog.line.size() - 1, OwnerOptions(),
                         FoundDamaged(), *catalog.run_id, /*incarnation=*/0);
  for (const CatalogEntry& entry : catalog.entries) {
    if (entry.manifest) {
      ledger.committed_unix_ms[entry.id] = entry.manifest->time_unix_ms;
    }
    if (IsForAPerson(entry)) ledger.kept.push_back(entry.id);
  }
  if (options.only) {
    ledger.chosen = {*options.only};
    std::erase(ledger.kept, *options.only);
  }
  const std::vector<CheckpointId> old =
      PlanRetention(ledger, options.policy, now_unix_ms);
  const std::set<CheckpointId> goes(old.begin(), old.end());

  for (size_t i = 0; i < catalog.entries.size(); ++i) {
    const CatalogEntry& entry = catalog.entries[i];
    PruneEntry judged{i, goes.contains(entry.id), entry.reason};
    const auto on_line = std::find(catalog.line.begin(), catalog.line.end(), i);
    if (judged.goes && options.only) {
      judged.why = "named";
    } else if (entry.state == EntryState::kAttempt) {
      judged.goes = !options.only;
    } else if (IsForAPerson(entry)) {
      judged.why += "; stays unless it is named";
    } else if (on_line != catalog.line.end() && judged.goes) {
      judged.why =
          absl::StrFormat("older than the newest %d", options.policy.keep_last);
    } else if (on_line != catalog.line.end()) {
      judged.why = WhyKept(entry, catalog.line.end() - on_line - 1, options);
    }
    plan.entries.push_back(std::move(judged));
  }
  return plan;
}

PruneClaimSession::PruneClaimSession(const SessionEnv& env,
                                     PruneOptions options, OwnerClaim who)
    : clock_(env.clock),
      io_(env),
      options_(std::move(options)),
      claim_(std::move(who)) {
  fiber_.Start(Run());
}

Task<absl::StatusOr<RunLedger>> PruneClaimSession::Take() {
  const auto first = co_await ReadCatalog(&io_);
  if (!first.ok()) co_return first.status();
  if (options_.newest_claim && first->newest_claim != *options_.newest_claim) {
    co_return absl::FailedPreconditionError(
        absl::StrFormat("owner i%04d has claimed the run meanwhile: a job has "
                        "begun in it; nothing was changed",
                        first->newest_claim));
  }
  const int64_t now = absl::ToUnixMillis(clock_->WallTime());
  const auto before = PlanPrune(*first, options_, now);
  if (!before.ok()) co_return before.status();
  claim_.run_id = before->ledger.run_id;
  claim_.time_unix_ms = now;
  claim_.world = 0;
  const auto incarnation = co_await ClaimNext(&io_, claim_);
  if (!incarnation.ok()) co_return incarnation.status();

  for (int look = 0; look < kLooksMax; ++look) {
    if (look > 1) {
      const absl::Duration at =
          clock_->Monotonic() + kSeeTries * kSeeWait / kLooksMax;
      co_await UntilTime(clock_, at);
    }
    const absl::Status owner = co_await CheckOwner(&io_, *incarnation);
    if (!owner.ok()) co_return owner;
    auto found = co_await ReadCatalog(&io_);
    if (!found.ok()) co_return found.status();
    Catalog catalog = *std::move(found);
    bool stale = false;
    const absl::Status adopted =
        co_await AdoptLine(&io_, &catalog, *incarnation, &stale);
    if (!adopted.ok()) co_return adopted;
    if (stale) continue;
    auto plan = PlanPrune(catalog, options_, now);
    if (!plan.ok()) co_return plan.status();
    RunLedger ledger = std::move(plan->ledger);
    ledger.incarnation = *incarnation;
    ledger.seal.incarnation = *incarnation;
    const absl::Status still = co_await CheckOwner(&io_, *incarnation);
    if (!still.ok()) co_return still;
    const absl::Status put = co_await PutSeal(&io_, &ledger.seal);
    if (!put.ok()) co_return put;
    co_return std::move(ledger);
  }
  co_return absl::UnavailableError(absl::StrFormat(
      "adopting the run's checkpoints: they kept moving under %d looks",
      kLooksMax));
}

Task<bool> PruneClaimSession::Run() {
  auto taken = co_await Take();
  result_ = std::move(taken);
  co_return true;
}

void PruneClaimSession::OnCompletion(const Completion& completion) {
  io_.OnCompletion(completion);
}
bool PruneClaimSession::OnMessage(const Message&) { return false; }
void PruneClaimSession::Poll() { fiber_.Poll(); }
bool PruneClaimSession::done() const { return fiber_.done() && io_.idle(); }

}  // namespace holdfast::ckpt

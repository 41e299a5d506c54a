// ckpt/session/owner_lead.cc: a start, as rank 0 leads it.

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/session/messages.h"
#include "ckpt/session/owner_claim.h"
#include "ckpt/session/owner_state.h"
#include "ckpt/session/rank_names.h"

namespace holdfast::ckpt {
namespace {

// How often the catalog may change under an owner that adopts. Only owners that
// claim at the same moment change it, and each of them once.
constexpr int kLooksMax = 16;

// Rank 0 plans so many ranks in one turn while it waits: a millisecond or two.
constexpr int kPlansAPoll = 16;

// The worst first: what a person must decide, then what another try may cure,
// then what the checkpoint before may cure, then what another rank's failure
// ended.
int Severity(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kAborted:
      return 1;
    case absl::StatusCode::kDataLoss:
      return 2;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kNotFound:
      return 3;
    default:
      return 4;
  }
}

}  // namespace

std::string OwnerSession::State::NameRank(int rank) const {
  return absl::StrFormat("rank %d (%s)", rank, env.group->HostOf(Rank{rank}));
}

absl::Status OwnerSession::State::Missing(const std::vector<bool>& there,
                                          absl::Duration waited,
                                          const char* what) const {
  std::vector<int> missing;
  for (size_t rank = 0; rank < there.size(); ++rank) {
    if (!there[rank]) missing.push_back(static_cast<int>(rank));
  }
  return absl::DeadlineExceededError(absl::StrFormat(
      "starting: %d of %d ranks did not %s within %s: %s; the job stops",
      missing.size(), there.size(), what, absl::FormatDuration(waited),
      NameRanks(*env.group, missing)));
}

Task<absl::Status> OwnerSession::State::WaitForHellos() {
  hello_there[0] = true;
  hellos[0] = OwnHello();
  const absl::Duration until =
      std::min(begin + options.hello_timeout, deadline);
  Until all([this, until] {
    // The others' plans meanwhile.
    for (int i = 0; options.plans != nullptr && i < kPlansAPoll; ++i) {
      if (!options.plans->PlanNext()) break;
    }
    return std::find(hello_there.begin(), hello_there.end(), false) ==
               hello_there.end() ||
           !garbled.ok() || env.clock->Monotonic() >= until;
  });
  co_await all;
  if (!garbled.ok()) co_return garbled;
  for (size_t rank = 0; rank < hello_there.size(); ++rank) {
    if (!hello_there[rank]) {
      co_return Missing(hello_there, env.clock->Monotonic() - begin,
                        "say that they are ready");
    }
    const absl::Status same = CompareHello(static_cast<int>(rank));
    if (!same.ok()) co_return same;
  }
  co_return absl::OkStatus();
}

absl::Status OwnerSession::State::CompareHello(int rank) const {
  const HelloMessage& hello = hellos[rank];
  const std::string zero = NameRank(0);
  if (hello.fingerprint != hellos[0].fingerprint) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "starting: %s has fingerprint \"%s\", %s has \"%s\"; all ranks must "
        "run the same program on the same kind of processor",
        NameRank(rank), hello.fingerprint, zero, hellos[0].fingerprint));
  }
  if (hello.save_options != hellos[0].save_options) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "starting: %s would save with \"%s\", %s with \"%s\"; all ranks must "
        "have the same configuration",
        NameRank(rank), hello.save_options, zero, hellos[0].save_options));
  }
  if (options.plans == nullptr) return absl::OkStatus();
  while (!options.plans->all_planned()) options.plans->PlanNext();
  const uint64_t expected = options.plans->Of(Rank{rank}).hash;
  if (hello.plan_hash == expected) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "starting: %s would save by another plan (hash %016x) than %s expects of "
      "it (%016x); all ranks must run the same build and configuration",
      NameRank(rank), hello.plan_hash, zero, expected));
}

Task<absl::StatusOr<ChoiceMessage>> OwnerSession::State::MakeChoice(
    std::optional<size_t> at) {
  ChoiceMessage message;
  message.run_id = result.run_id;
  message.incarnation = result.incarnation;
  message.round = round;
  message.share = share;
  if (options.resume == ResumeMode::kClaim) {
    // Nothing to load, only to know.
    if (at) message.dir = catalog.entries[catalog.line[*at]].dir;
    co_return message;
  }
  if (at) {
    message.source = ChoiceMessage::Source::kRun;
    message.dir = catalog.entries[catalog.line[*at]].dir;
  } else if (init_io) {
    message.source = ChoiceMessage::Source::kInit;
    message.dir = options.init_dir;
  } else {
    co_return message;
  }
  const auto manifest = co_await ReadManifest(&IoOf(message.source),
                                              message.dir, &message.manifest);
  if (!manifest.ok()) co_return manifest.status();
  const absl::Status agree = Agree(**manifest, message.source);
  if (!agree.ok()) co_return agree;
  co_return message;
}

Task<absl::Status> OwnerSession::State::LookFirst() {
  auto found = co_await ReadCatalog(&io);
  if (!found.ok()) co_return found.status();
  catalog = *std::move(found);
  if (options.canary_ignore_seal) IgnoreSeal(catalog);
  const auto at = ChooseCheckpoint(catalog, options, damaged);
  if (!at.ok()) co_return at.status();
  const auto message = co_await MakeChoice(*at);
  // What is damaged, or has just been retired, is looked at when the run is
  // ours.
  if (*at && (absl::IsDataLoss(message.status()) ||
              absl::IsNotFound(message.status()))) {
    co_return absl::OkStatus();
  }
  co_return message.status();
}

Task<absl::Status> OwnerSession::State::Take() {
  const auto run_id = co_await PrepareRun(&io, options.run_id_if_new);
  if (!run_id.ok()) co_return run_id.status();
  OwnerClaim claim;
  claim.run_id = *run_id;
  claim.host = env.group->HostOf(Rank{0});
  claim.pid = options.pid;
  claim.mark = options.mark;
  claim.time_unix_ms = absl::ToUnixMillis(env.clock->WallTime());
  claim.world = env.group->size();
  const auto incarnation = co_await ClaimNext(&io, claim);
  if (!incarnation.ok()) co_return incarnation.status();
  result.run_id = *run_id;
  result.incarnation = *incarnation;

  for (int look = 0; look < kLooksMax; ++look) {
    if (look > 1) {
      // An old listing, perhaps, of a network file system.
      const absl::Duration at =
          env.clock->Monotonic() + kSeeTries * kSeeWait / kLooksMax;
      co_await UntilTime(env.clock, at);
    }
    const absl::Status owner = co_await CheckOwner(&io, *incarnation);
    if (!owner.ok()) co_return owner;
    auto found = co_await ReadCatalog(&io);
    if (!found.ok()) co_return found.status();
    catalog = *std::move(found);
    if (options.canary_ignore_seal) IgnoreSeal(catalog);
    if (options.resume == ResumeMode::kNever) co_return absl::OkStatus();
    bool stale = false;
    const absl::Status adopted =
        co_await AdoptLine(&io, &catalog, *incarnation, &stale);
    if (!adopted.ok() || !stale) co_return adopted;
  }
  co_return absl::UnavailableError(absl::StrFormat(
      "adopting the run's checkpoints: they kept moving under %d looks",
      kLooksMax));
}

Task<absl::Status> OwnerSession::State::WaitForReports(uint32_t of_round) {
  Until all([this] {
    return std::all_of(reports.begin(), reports.end(),
                       [](const auto& report) { return report.has_value(); }) ||
           !garbled.ok() || late();
  });
  co_await all;
  if (!garbled.ok()) co_return garbled;
  std::vector<bool> there;
  for (const auto& report : reports) {
    there.push_back(report && report->round == of_round);
  }
  if (std::find(there.begin(), there.end(), false) != there.end()) {
    co_return Missing(there, env.clock->Monotonic() - begin,
                      "finish their load");
  }
  co_return absl::OkStatus();
}

// Is what `rank` found damaged also damaged for rank 0?
Task<absl::Status> OwnerSession::State::Confirm(const ChoiceMessage* choice,
                                                int rank) {
  const ReportMessage report = *reports[rank];
  if (!report.damage) co_return report.status;
  const auto manifest = DecodeManifest(choice->manifest);
  if (!manifest.ok()) co_return manifest.status();
  const UnitDamage& damage = *report.damage;
  if (damage.file >= manifest->files.size()) co_return report.status;
  std::vector<FileWant> wants(1);
  wants[0].file = damage.file;
  if (damage.bytes > 0) {
    wants[0].pick =
        PickRange(damage.image_offset, damage.image_offset + damage.bytes);
  }
  UnitReader reader(&IoOf(choice->source), choice->dir, &*manifest,
                    options.reader);
  UnitReader::Sink sink = [](uint32_t, uint64_t, std::span<const std::byte>) {};
  const absl::Status again =
      co_await reader.Read(std::move(wants), std::move(sink));
  if (absl::IsDataLoss(again)) {
    co_return absl::DataLossError(ToString(reader.damage().front()));
  }
  if (!again.ok()) co_return again;
  // A file that is not there or too short may be what that rank's client has
  // not heard of yet: this start has renamed the directory.
  perhaps_late = damage.bytes == 0;
  co_return absl::UnavailableError(absl::StrFormat(
      "%s reads %s, and rank 0 (%s) reads the same bytes whole: that rank's "
      "memory, link or path",
      NameRank(rank), ToString(damage), env.group->HostOf(Rank{0})));
}

Task<absl::Status> OwnerSession::State::Weigh(const ChoiceMessage* choice) {
  size_t worst = 0;
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    if (Severity(reports[rank]->status) > Severity(reports[worst]->status)) {
      worst = rank;
    }
  }
  const absl::Status status = reports[worst]->status;
  if (absl::IsDataLoss(status)) {
    const absl::Status confirmed = co_await Confirm(choice, worst);
    co_return confirmed;
  }
  if (status.ok()) co_return status;
  co_return absl::Status(status.code(),
                         absl::StrFormat("%s: %s", NameRank(worst),
                                         std::string(status.message())));
}

void OwnerSession::State::StopTry(int rank, const absl::Status& status) {
  if (stopped && stopped->round == round) return;
  StopMessage stop;
  stop.round = round;
  stop.status = absl::AbortedError(absl::StrFormat(
      "ended since %s failed: %s", NameRank(rank), status.ToString()));
  const std::vector<std::byte> body = Encode(stop);
  for (int to = 1; to < env.group->size(); ++to) {
    if (!reports[to]) Send(Rank{to}, kPhaseLoadStop, body);
  }
  OnStop(std::move(stop));
}

void OwnerSession::State::SumUp() {
  for (const auto& report : reports) {
    result.job_bytes_read += report->bytes_read;
    result.job_bytes_received += report->bytes_received;
  }
}

Task<absl::Status> OwnerSession::State::LoadAndDecide() {
  int tries = 0;
  absl::Duration first_try = env.clock->Monotonic();
  while (true) {
    const auto at = ChooseCheckpoint(catalog, options, damaged);
    if (!at.ok()) co_return at.status();
    position = *at;
    const CheckpointId id =
        position ? catalog.entries[catalog.line[*position]].id : CheckpointId();
    ++round;
    if (++tries == 1) first_try = env.clock->Monotonic();
    perhaps_late = false;
    share = options.share && !share_fails && env.group->size() > 1;
    std::fill(reports.begin(), reports.end(), std::nullopt);
    absl::Status status;
    const auto message = co_await MakeChoice(position);
    status = message.status();
    if (status.ok()) {
      const std::vector<std::byte> body = Encode(*message);
      PassOn(body);
      ReportMessage own = co_await Load(&*message);
      reports[0] = std::move(own);
      if (share && !reports[0]->status.ok()) StopTry(0, reports[0]->status);
      status = co_await WaitForReports(round);
      if (status.ok()) status = co_await Weigh(&*message);
    }
    if (status.ok()) {
      SumUp();
      co_return status;
    }
    for (const auto& report : reports) {
      share_fails |= report && report->exchange_failed;
    }
    // A new owner moves directories away: that looks like damage, and is not.
    const absl::Status owner = co_await CheckOwner(&io, result.incarnation);
    if (absl::IsFailedPrecondition(owner)) co_return owner;
    if (late() && !absl::IsDeadlineExceeded(status)) {
      co_return absl::DeadlineExceededError(
          absl::StrFormat("starting took longer than %s; the last word was: %s",
                          absl::FormatDuration(options.load_timeout),
                          std::string(status.message())));
    }
    if (absl::IsDataLoss(status) && position) {
      damaged[id] = std::string(status.message());
      tries = 0;
      continue;
    }
    const bool may_appear = perhaps_late && env.clock->Monotonic() - first_try <
                                                kSeeTries * kSeeWait;
    if (!absl::IsUnavailable(status) ||
        (tries >= options.load_tries && !may_appear)) {
      co_return status;
    }
    if (tries < options.load_tries) {
      result.notes.push_back(absl::StrFormat(
          "try %d of %d to load failed, another follows in %s: %s", tries,
          options.load_tries, absl::FormatDuration(options.retry_wait),
          std::string(status.message())));
    }
    if (share && share_fails) {
      result.notes.push_back(
          "from here on each rank reads alone what it wants");
    }
    const absl::Duration until = env.clock->Monotonic() + options.retry_wait;
    co_await UntilTime(env.clock, until);
  }
}

Task<absl::Status> OwnerSession::State::Seal() {
  const absl::Status owner = co_await CheckOwner(&io, result.incarnation);
  if (!owner.ok()) co_return owner;
  result.seal = MakeSeal(catalog, position, options, damaged, result.run_id,
                         result.incarnation);
  for (const SealedCheckpoint& sealed : result.seal.line) {
    const CatalogEntry* const entry = catalog.Find(sealed.id);
    if (entry == nullptr || !entry->manifest.has_value()) continue;
    result.committed_unix_ms[sealed.id] = entry->manifest->time_unix_ms;
  }
  const absl::Status put = co_await PutSeal(&io, &result.seal);
  if (!put.ok()) co_return put;
  result.stepped_over = SteppedOver(catalog, result.seal);
  for (const SupersededCheckpoint& over : result.stepped_over) {
    result.notes.push_back(absl::StrFormat(
        "stepped over %s (%s); %s", ToString(over.checkpoint.id), over.reason,
        result.seal.head ? absl::StrFormat("the run continues from %s",
                                           ToString(*result.seal.head))
                         : "the run starts from nothing"));
  }
  co_return absl::OkStatus();
}

void OwnerSession::State::TellAll(const VerdictMessage& message) {
  const std::vector<std::byte> body = Encode(message);
  for (int rank = 1; rank < env.group->size(); ++rank) {
    Send(Rank{rank}, kPhaseLoadVerdict, body);
  }
}

Task<absl::Status> OwnerSession::State::Lead() {
  absl::Status status = co_await WaitForHellos();
  if (status.ok()) status = co_await LookFirst();
  if (status.ok() && options.nonce != 0) status = co_await Preflight();
  if (status.ok()) status = co_await Take();
  if (status.ok()) status = co_await LoadAndDecide();
  if (status.ok()) status = co_await Seal();

  VerdictMessage last;
  last.status = status;
  for (const SupersededCheckpoint& over : result.stepped_over) {
    last.stepped_over.emplace_back(over.checkpoint.id, over.reason);
  }
  TellAll(last);
  co_return status;
}

}  // namespace holdfast::ckpt

// ckpt/session/owner_session.cc: a start, as every rank lives it.

#include "ckpt/session/owner_session.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/session/messages.h"
#include "ckpt/session/owner_state.h"

namespace holdfast::ckpt {
namespace {

// A choice may be as large as a manifest; nobody sends it to more ranks.
constexpr int kTreeFanOut = 4;

// How long after the deadline a storage may still answer.
constexpr absl::Duration kHangGrace = absl::Seconds(15);

constexpr char kWeightKind[] = "weight";

// In the files, of all items or, where only those are `taken`, of the weights.
uint64_t BytesStored(const Manifest& manifest, size_t taken) {
  uint64_t bytes = 0;
  for (const ShardFile& file : manifest.files) {
    if (taken == manifest.items.size()) {
      bytes += file.bytes;
      continue;
    }
    for (const Chunk& chunk : file.chunks) {
      if (manifest.items[chunk.item].kind == kWeightKind) {
        bytes += chunk.bytes_stored;
      }
    }
  }
  return bytes;
}

// The checkpoint that a claim goes on from, which a choice names by its place.
std::optional<CheckpointId> ClaimedBy(const ChoiceMessage& choice) {
  const size_t slash = choice.dir.rfind('/');
  const auto parsed = ParseCheckpointDir(
      slash == std::string::npos ? choice.dir : choice.dir.substr(slash + 1));
  if (!parsed.has_value()) return std::nullopt;
  return parsed->id;
}

}  // namespace

Holding OwnerSession::State::WantedBy(Rank rank) const {
  Holding all = layout->WantedBy(rank);
  if (items.size() == layout->items().size()) return all;
  std::vector<Fragment> kept;
  for (Fragment fragment : all.fragments) {
    if (!item_index[fragment.item]) continue;
    fragment.item = *item_index[fragment.item];
    kept.push_back(fragment);
  }
  all.fragments = std::move(kept);
  return all;
}

OwnerSession::State::State(const SessionEnv& env, const JobLayout* layout,
                           const LoadTarget* target, OwnerOptions options_in)
    : env(env),
      layout(layout),
      target(target),
      options(std::move(options_in)),
      io(env),
      begin(env.clock->Monotonic()) {
  if (options.init_env) init_io.emplace(*options.init_env);
  // The others outlast rank 0, which can say who is missing.
  deadline = begin + options.load_timeout;
  if (!leads()) deadline += options.load_timeout / 10 + absl::Seconds(1);
  hello_there.resize(env.group->size());
  hellos.resize(env.group->size());
  preflight_reports.resize(env.group->size());
  reports.resize(env.group->size());
  fiber.Start(Run());
}

void OwnerSession::State::Send(Rank to, uint32_t phase,
                               std::span<const std::byte> body) {
  env.group->Send(to, MessageTag{0, 0, phase}, body);
}

HelloMessage OwnerSession::State::OwnHello() const {
  return {options.fingerprint, options.save_options,
          options.plans != nullptr ? options.plans->own_hash() : 0};
}

void OwnerSession::State::PassOn(std::span<const std::byte> choice) {
  const int self = Index(env.group->rank());
  for (int i = 1; i <= kTreeFanOut; ++i) {
    const int child = self * kTreeFanOut + i;
    if (child < env.group->size()) Send(Rank{child}, kPhaseChoice, choice);
  }
}

void OwnerSession::State::Receive(const Message& message) {
  const int from = Index(message.from);
  const auto garble = [&](const absl::Status& status) {
    garbled = absl::Status(status.code(),
                           absl::StrFormat("from %s: %s", NameRank(from),
                                           std::string(status.message())));
  };
  switch (message.tag.phase) {
    case kPhaseHello: {
      auto hello = DecodeHello(message.body);
      if (!hello.ok()) return garble(hello.status());
      hello_there[from] = true;
      hellos[from] = *std::move(hello);
      return;
    }
    case kPhasePreflight: {
      auto decoded = DecodePreflight(message.body);
      if (!decoded.ok()) return garble(decoded.status());
      preflight = *std::move(decoded);
      return;
    }
    case kPhasePreflightReport: {
      auto decoded = DecodePreflightReport(message.body);
      if (!decoded.ok()) return garble(decoded.status());
      preflight_reports[from] = *std::move(decoded);
      return;
    }
    case kPhaseChoice: {
      auto decoded = DecodeChoice(message.body);
      if (!decoded.ok()) return garble(decoded.status());
      PassOn(message.body);
      choice = *std::move(decoded);
      return;
    }
    case kPhaseLoadReport: {
      auto report = DecodeReport(message.body);
      if (!report.ok()) return garble(report.status());
      if (report->round != round) return;
      reports[from] = *std::move(report);
      if (share && !reports[from]->status.ok()) {
        StopTry(from, reports[from]->status);
      }
      return;
    }
    case kPhasePiece:
    case kPhasePieceTaken:
      return ReceivePiece(message);
    case kPhaseLoadStop: {
      auto stop = DecodeStop(message.body);
      if (!stop.ok()) return garble(stop.status());
      return OnStop(*std::move(stop));
    }
    default: {
      auto decoded = DecodeVerdict(message.body);
      if (!decoded.ok()) return garble(decoded.status());
      verdict = *std::move(decoded);
      // A load that nobody waits for any more.
      if (loader != nullptr && !verdict->status.ok()) loader->Cancel();
      return;
    }
  }
}

void OwnerSession::State::ReceivePiece(const Message& message) {
  const uint32_t of_round = message.tag.attempt;
  if (exchange && exchange->tag().attempt == of_round &&
      exchange->tag().incarnation == message.tag.incarnation) {
    exchange->OnMessage(message);
  } else if (of_round > round_seen) {
    // Its sender has heard of this try already. It sends little before we
    // answer.
    early_pieces.push_back(message);
  }
}

void OwnerSession::State::StartExchange(const ChoiceMessage& choice) {
  ExchangeOptions how = options.exchange;
  how.silence = std::min(how.silence, options.load_timeout / 5);
  exchange.emplace(env.group, env.clock,
                   MessageTag{choice.incarnation, choice.round, 0}, how);
}

void OwnerSession::State::OnStop(StopMessage stop) {
  if (exchange && exchange->tag().attempt == stop.round) {
    exchange->Fail(stop.status);
    if (loader != nullptr) loader->Cancel();
  }
  stopped = std::move(stop);
}

absl::Status OwnerSession::State::Agree(const Manifest& manifest,
                                        ChoiceMessage::Source source) {
  const bool subset =
      source == ChoiceMessage::Source::kInit && options.init_weights_only;
  items.clear();
  item_index.assign(layout->items().size(), std::nullopt);
  for (size_t i = 0; i < layout->items().size(); ++i) {
    const ItemSpec& item = layout->items()[i];
    if (subset && item.kind != kWeightKind) continue;
    item_index[i] = static_cast<ItemIndex>(items.size());
    items.push_back(item);
  }
  const absl::Status match = MatchItems(
      manifest, items, subset ? ItemMatch::kSubset : ItemMatch::kExact);
  if (!match.ok()) return match;
  // Weights alone may come from any run.
  if (!subset && options.validate) {
    return options.validate(manifest.attributes);
  }
  return absl::OkStatus();
}

// Rank 0 has just been there; the others must find the same.
Task<absl::Status> OwnerSession::State::SeeTheRun(RunId run_id) {
  absl::Status status;
  for (int tries = 1; tries <= kSeeTries; ++tries) {
    const auto bytes = co_await GetFile(&io, kRunIdName, kRecordBytesMax);
    status = bytes.status();
    if (bytes.ok()) {
      const auto found = DecodeRunId(*bytes);
      if (found.ok() && *found == run_id) co_return absl::OkStatus();
      if (found.ok()) {
        co_return absl::FailedPreconditionError(absl::StrFormat(
            "%s says run %s here, rank 0 sees run %s: the ranks do not share "
            "one run directory",
            kRunIdName, ToHex(*found), ToHex(run_id)));
      }
      // A client that still believes in an old size reads a part of it.
      status = found.status();
    } else if (!absl::IsNotFound(status)) {
      break;
    }
    const absl::Duration at = env.clock->Monotonic() + kSeeWait;
    co_await UntilTime(env.clock, at);
  }
  co_return absl::UnavailableError(absl::StrFormat(
      "the run directory that rank 0 uses is not to be seen here: %s",
      std::string(status.message())));
}

Task<ReportMessage> OwnerSession::State::Load(const ChoiceMessage* choice) {
  ReportMessage report;
  report.round = choice->round;
  round_seen = choice->round;
  exchange.reset();
  if (choice->share) StartExchange(*choice);
  for (const Message& message : std::exchange(early_pieces, {})) {
    ReceivePiece(message);
  }
  result.run_id = choice->run_id;
  result.incarnation = choice->incarnation;
  result.loaded.reset();
  if (!leads()) {
    report.status = co_await SeeTheRun(choice->run_id);
    if (!report.status.ok()) co_return report;
  }
  if (choice->source == ChoiceMessage::Source::kFresh) {
    result.claimed = ClaimedBy(*choice);
    co_return report;
  }
  if (choice->source == ChoiceMessage::Source::kInit && !init_io) {
    report.status = absl::FailedPreconditionError(
        "rank 0 takes its state from --init-from, this rank was given none");
    co_return report;
  }
  const auto manifest = DecodeManifest(choice->manifest);
  report.status = manifest.status();
  if (!manifest.ok()) co_return report;
  report.status = Agree(*manifest, choice->source);
  if (!report.status.ok()) co_return report;
  if (stopped && stopped->round == choice->round) {
    report.status = stopped->status;
    co_return report;
  }
  wanted = WantedBy(env.group->rank());
  result.bytes_stored = BytesStored(*manifest, items.size());

  loader =
      std::make_unique<Loader>(&IoOf(choice->source), choice->dir, &*manifest,
                               &items, &wanted, target, options.reader);
  if (exchange) {
    loader->Share({.exchange = &*exchange,
                   .plan = options.exchange.plan,
                   .world = env.group->size(),
                   .self = env.group->rank(),
                   .wanted_by = [this](Rank rank) { return WantedBy(rank); }});
  }
  report.status = co_await loader->Run();
  const LoadOutcome outcome = loader->outcome();
  loader.reset();
  report.damage = outcome.damage;
  report.exchange_failed = exchange && exchange->at_fault();
  report.bytes_read = outcome.bytes_read;
  report.bytes_received = outcome.bytes_received;
  // What the loader lent to it is gone.
  if (exchange) exchange->Fail(absl::AbortedError("the try is over"));
  result.bytes_wanted = outcome.bytes_wanted;
  result.bytes_read += outcome.bytes_read;
  result.bytes_received += outcome.bytes_received;
  result.load_seconds += outcome.seconds;
  if (report.status.ok()) {
    result.loaded = LoadedCheckpoint{
        manifest->id,         manifest->commit_number,
        manifest->world,      manifest->layout,
        manifest->attributes, choice->source == ChoiceMessage::Source::kInit};
  }
  co_return report;
}

Task<absl::Status> OwnerSession::State::Follow() {
  const std::vector<std::byte> hello = Encode(OwnHello());
  Send(Rank{0}, kPhaseHello, hello);
  while (true) {
    Until news([this] {
      return verdict || choice || preflight || late() || !garbled.ok();
    });
    co_await news;
    if (!garbled.ok()) co_return garbled;
    if (preflight && !verdict) {
      const PreflightMessage asked = *std::exchange(preflight, std::nullopt);
      PreflightReport report;
      report.status = co_await LookBefore(&io, env.group, &asked);
      report.direct_io = env.storage->traits().direct_io;
      const std::vector<std::byte> body = Encode(report);
      Send(Rank{0}, kPhasePreflightReport, body);
      continue;
    }
    if (verdict) {
      for (auto& [id, reason] : verdict->stepped_over) {
        SupersededCheckpoint over;
        over.checkpoint.id = id;
        over.reason = reason;
        result.stepped_over.push_back(std::move(over));
      }
      co_return verdict->status;
    }
    if (!choice) {
      co_return absl::DeadlineExceededError(absl::StrFormat(
          "starting: rank 0 (%s) did not say within %s which checkpoint to use",
          env.group->HostOf(Rank{0}),
          absl::FormatDuration(env.clock->Monotonic() - begin)));
    }
    const ChoiceMessage current = *std::exchange(choice, std::nullopt);
    const ReportMessage report = co_await Load(&current);
    const std::vector<std::byte> body = Encode(report);
    Send(Rank{0}, kPhaseLoadReport, body);
    if (late() && !verdict) {
      co_return absl::DeadlineExceededError(absl::StrFormat(
          "starting: the load of %s did not end within %s",
          NameRank(Index(env.group->rank())),
          absl::FormatDuration(env.clock->Monotonic() - begin)));
    }
  }
}

Task<bool> OwnerSession::State::Run() {
  Task<absl::Status> start = leads() ? Lead() : Follow();
  absl::Status status = co_await start;
  result.status = std::move(status);
  if (!result.status.ok()) result.loaded.reset();
  co_return true;
}

void OwnerSession::State::GiveUpIfHung() {
  if (hung || fiber.done() || env.clock->Monotonic() < deadline + kHangGrace) {
    return;
  }
  hung = true;
  const size_t calls = io.unanswered() + (init_io ? init_io->unanswered() : 0);
  result.loaded.reset();
  result.status = absl::DeadlineExceededError(absl::StrFormat(
      "starting: the storage of %s has left %d calls unanswered for more than "
      "%s; the job stops",
      NameRank(Index(env.group->rank())), calls,
      absl::FormatDuration(kHangGrace)));
  if (leads()) TellAll(VerdictMessage{result.status, {}});
}

OwnerSession::OwnerSession(const SessionEnv& env, const JobLayout* layout,
                           const LoadTarget* target, OwnerOptions options)
    : state_(std::make_unique<State>(env, layout, target, std::move(options))) {
}

OwnerSession::~OwnerSession() = default;

void OwnerSession::OnCompletion(const Completion& completion) {
  const bool of_init = state_->init_io && SpaceOf(completion.tag) ==
                                              state_->options.init_env->space;
  (of_init ? *state_->init_io : state_->io).OnCompletion(completion);
}

bool OwnerSession::OnMessage(const Message& message) {
  const uint32_t phase = message.tag.phase;
  if (phase < kPhaseHello || phase >= kPhaseBegin) return false;
  state_->Receive(message);
  return true;
}

void OwnerSession::Poll() {
  if (state_->hung) return;
  if (state_->exchange) state_->exchange->Poll();
  if (state_->loader != nullptr &&
      (state_->late() ||
       (state_->exchange && !state_->exchange->status().ok()))) {
    state_->loader->Cancel();
  }
  state_->fiber.Poll();
  state_->GiveUpIfHung();
}

bool OwnerSession::done() const {
  if (state_->hung) return true;
  return state_->fiber.done() && state_->io.idle() &&
         (!state_->init_io || state_->init_io->idle());
}

LoadProgress OwnerSession::progress() const {
  return state_->loader != nullptr ? state_->loader->progress()
                                   : LoadProgress();
}

bool OwnerSession::waits_for_ranks() const {
  return state_->exchange && state_->exchange->status().ok() &&
         state_->io.idle() && (!state_->init_io || state_->init_io->idle());
}

const OwnerResult& OwnerSession::result() const { return state_->result; }

}  // namespace holdfast::ckpt

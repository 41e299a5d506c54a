// ckpt/session/load_session.cc: plan, read, scatter.

#include "ckpt/session/load_session.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/base/check.h"
#include "ckpt/plan/load_plan.h"
#include "ckpt/plan/scatter.h"
#include "ckpt/plan/share_plan.h"

namespace holdfast::ckpt {
namespace {

std::string ShapeText(const ItemSpec& item) {
  return absl::StrFormat("%s[%s]", std::string(NameOf(item.dtype)),
                         absl::StrJoin(item.shape, ","));
}

std::string ItemText(const ItemSpec& item) {
  return absl::StrFormat("%s of '%s'", item.kind, item.name);
}

}  // namespace

absl::Status MatchItems(const Manifest& manifest,
                        const std::vector<ItemSpec>& items, ItemMatch match) {
  const auto refuse = [&manifest](std::string what) {
    return absl::FailedPreconditionError(
        absl::StrFormat("loading %s: %s", ToString(manifest.id), what));
  };
  const auto key = [](const ItemSpec& item) {
    return std::pair(item.name, item.kind);
  };
  size_t saved_at = 0;
  for (const ItemSpec& wanted : items) {
    while (saved_at < manifest.items.size() &&
           key(manifest.items[saved_at]) < key(wanted)) {
      if (match == ItemMatch::kExact) break;
      ++saved_at;
    }
    const ItemSpec* saved =
        saved_at < manifest.items.size() ? &manifest.items[saved_at] : nullptr;
    if (saved != nullptr && key(*saved) < key(wanted)) {
      return refuse(
          absl::StrFormat("the checkpoint has %s, %s, which this job does not",
                          ItemText(*saved), ShapeText(*saved)));
    }
    if (saved == nullptr || key(*saved) != key(wanted)) {
      return refuse(
          absl::StrFormat("the checkpoint lacks %s; this job wants %s",
                          ItemText(wanted), ShapeText(wanted)));
    }
    if (saved->dtype != wanted.dtype || saved->shape != wanted.shape) {
      return refuse(absl::StrFormat(
          "%s: the checkpoint has %s, this job wants "
          "%s",
          ItemText(wanted), ShapeText(*saved), ShapeText(wanted)));
    }
    ++saved_at;
  }
  if (match == ItemMatch::kExact && saved_at < manifest.items.size()) {
    const ItemSpec& saved = manifest.items[saved_at];
    return refuse(
        absl::StrFormat("the checkpoint has %s, %s, which this job does not",
                        ItemText(saved), ShapeText(saved)));
  }
  return absl::OkStatus();
}

// Reads for a device's regions go into its staging memory, and none straight
// into place.
UnitReaderOptions ReaderOptions(UnitReaderOptions options,
                                const LoadTarget& target) {
  if (LoadStaging* const staging = target.staging()) {
    options.memory = staging->read_memory();
    options.read_bytes_max = staging->read_bytes();
    options.reads_in_flight =
        static_cast<int>(options.memory.size() / options.read_bytes_max);
  }
  return options;
}

struct Loader::State {
  State(Io* io, std::string dir, const Manifest* manifest,
        const std::vector<ItemSpec>* items, const Holding* wanted,
        const LoadTarget* target, const UnitReaderOptions& options)
      : io(io),
        reader(io, std::move(dir), manifest, ReaderOptions(options, *target)),
        manifest(manifest),
        items(items),
        wanted(wanted),
        target(target),
        padding(manifest, *items, *wanted) {
    if (LoadStaging* const staging = target->staging()) {
      put = [staging](uint32_t region, uint64_t offset,
                      std::span<const std::byte> bytes) {
        staging->Put(region, offset, bytes);
      };
      reader.SetLending(
          [staging] { return staging->last_event(); },
          [staging](uint64_t event) { return staging->Passed(event); });
    }
  }

  Io* const io;
  UnitReader reader;
  const Manifest* const manifest;
  const std::vector<ItemSpec>* const items;
  const Holding* const wanted;
  const LoadTarget* const target;
  PutBytes put;  // null: into the regions
  const Padding padding;
  LoadPlan plan;
  std::optional<Scatter> scatter;
  uint64_t bytes_put = 0;  // of what this rank has read
  bool cancelled = false;

  std::optional<LoadSharing> sharing;
  SharePlan share;
  std::optional<SharedReads> reads;

  uint64_t bytes_wanted() const {
    return sharing ? share.own.bytes_wanted : plan.bytes_wanted;
  }
  uint64_t bytes_there() const {
    return bytes_put + (sharing ? sharing->exchange->bytes_received() : 0);
  }
  LoadOutcome outcome;

  FileWant::Place PlaceIn(const Scatter& to, uint32_t file) {
    if (put != nullptr) return nullptr;
    return [&to, this, file](uint64_t offset, uint64_t size) {
      return to.PlaceOf(file, offset, size, target->regions(), padding);
    };
  }
  void PutInto(const Scatter& to, uint32_t file, uint64_t offset,
               std::span<const std::byte> bytes) {
    bytes_put += put != nullptr
                     ? to.ScatterBytes(file, offset, bytes, put)
                     : to.ScatterBytes(file, offset, bytes, target->regions());
  }
};

Loader::Loader(Io* io, std::string dir, const Manifest* manifest,
               const std::vector<ItemSpec>* items, const Holding* wanted,
               const LoadTarget* target, const UnitReaderOptions& options)
    : state_(std::make_unique<State>(io, std::move(dir), manifest, items,
                                     wanted, target, options)) {}

Loader::~Loader() = default;

Task<absl::Status> Loader::Run() {
  Clock& clock = state_->io->clock();
  const absl::Duration begin = clock.Monotonic();
  absl::Status status = co_await Load();
  if (LoadStaging* const staging = state_->target->staging()) {
    const absl::Status copied = staging->Finish();
    if (status.ok()) status = copied;
  }
  LoadOutcome& outcome = state_->outcome;
  outcome.status = status;
  if (!state_->reader.damage().empty()) {
    outcome.damage = state_->reader.damage().front();
  }
  outcome.bytes_read = state_->reader.bytes_read();
  outcome.bytes_placed = state_->reader.bytes_placed();
  if (state_->sharing) {
    outcome.bytes_received = state_->sharing->exchange->bytes_received();
    outcome.bytes_sent = state_->sharing->exchange->bytes_sent();
  }
  outcome.seconds = absl::ToDoubleSeconds(clock.Monotonic() - begin);
  co_return status;
}

Task<absl::Status> Loader::Load() {
  State& state = *state_;
  Task<absl::Status> load = state.sharing ? LoadShared() : LoadAlone();
  const absl::Status loaded = co_await load;
  if (!loaded.ok()) co_return loaded;
  HF_CHECK(state.bytes_there() == state.bytes_wanted(),
           "%d bytes came into place, %d were wanted", state.bytes_there(),
           state.bytes_wanted());
  co_return absl::OkStatus();
}

Task<absl::Status> Loader::LoadAlone() {
  State& state = *state_;
  auto planned = PlanLoad(*state.manifest, *state.items, *state.wanted);
  if (!planned.ok()) co_return planned.status();
  state.plan = *std::move(planned);
  state.outcome.bytes_wanted = state.plan.bytes_wanted;

  const Scatter& scatter = state.scatter.emplace(state.plan);
  std::vector<FileWant> wants;
  for (const uint32_t file : scatter.files()) {
    FileWant::Pick pick = [&scatter, file](std::span<const Unit> units,
                                           uint64_t bytes_max) {
      return scatter.UnitsToRead(file, units, bytes_max);
    };
    wants.push_back({file, std::move(pick), state.PlaceIn(scatter, file)});
  }
  UnitReader::Sink sink = [&state](uint32_t file, uint64_t offset,
                                   std::span<const std::byte> bytes) {
    state.PutInto(*state.scatter, file, offset, bytes);
  };
  const absl::Status read =
      co_await state.reader.Read(std::move(wants), std::move(sink));
  co_return read;
}

Task<absl::Status> Loader::LoadShared() {
  State& state = *state_;
  Exchange& exchange = *state.sharing->exchange;
  auto planned = PlanShare(*state.manifest, *state.items, state.sharing->world,
                           state.sharing->self, state.sharing->wanted_by,
                           state.sharing->plan);
  if (!planned.ok()) co_return planned.status();
  state.share = *std::move(planned);
  state.outcome.bytes_wanted = state.share.own.bytes_wanted;
  const SharedReads& reads = state.reads.emplace(state.share);
  exchange.Begin(&state.share, &reads, state.target->regions(), state.put);

  std::vector<FileWant> wants;
  for (const uint32_t file : reads.files()) {
    FileWant::Pick pick = [&reads, file](std::span<const Unit> units,
                                         uint64_t bytes_max) {
      return reads.UnitsToRead(file, units, bytes_max);
    };
    wants.push_back({file, std::move(pick), state.PlaceIn(reads.own(), file)});
  }
  UnitReader::Sink sink = [&state, &exchange](
                              uint32_t file, uint64_t offset,
                              std::span<const std::byte> bytes) {
    state.PutInto(state.reads->own(), file, offset, bytes);
    exchange.Take(file, offset, bytes);
  };
  state.reader.SetGate([&exchange] { return exchange.has_room(); });
  const absl::Status read =
      co_await state.reader.Read(std::move(wants), std::move(sink));
  if (!read.ok()) {
    // Why the reading was cancelled.
    const bool elsewhere = absl::IsAborted(read) && !exchange.status().ok();
    co_return elsewhere ? exchange.status() : read;
  }
  exchange.EndReads();
  Until settled([&state, &exchange] {
    return !exchange.status().ok() || state.cancelled ||
           (exchange.all_sent() &&
            (exchange.all_ended() ||
             state.bytes_there() == state.bytes_wanted()));
  });
  co_await settled;
  if (!exchange.status().ok()) co_return exchange.status();
  if (state.bytes_there() == state.bytes_wanted()) co_return absl::OkStatus();
  if (state.cancelled) co_return absl::AbortedError("cancelled");
  co_return absl::InternalError(absl::StrFormat(
      "loading %s: all ranks have sent what they read, and %d of the %d wanted "
      "bytes are there; do all ranks run the same program?",
      ToString(state.manifest->id), state.bytes_there(), state.bytes_wanted()));
}

void Loader::Share(LoadSharing sharing) {
  state_->sharing = std::move(sharing);
}

void Loader::Cancel() {
  state_->cancelled = true;
  state_->reader.Cancel();
}

LoadProgress Loader::progress() const {
  return {state_->bytes_there(), state_->bytes_wanted()};
}
const LoadOutcome& Loader::outcome() const { return state_->outcome; }

LoadSession::LoadSession(const SessionEnv& env, std::string dir,
                         const Manifest* manifest,
                         const std::vector<ItemSpec>* items,
                         const Holding* wanted, const LoadTarget* target,
                         const UnitReaderOptions& options)
    : io_(env),
      loader_(&io_, std::move(dir), manifest, items, wanted, target, options) {
  fiber_.Start(Run());
}

Task<bool> LoadSession::Run() {
  const absl::Status status = co_await loader_.Run();
  co_return status.ok();
}

void LoadSession::OnCompletion(const Completion& completion) {
  io_.OnCompletion(completion);
}
bool LoadSession::OnMessage(const Message&) { return false; }
void LoadSession::Poll() { fiber_.Poll(); }
bool LoadSession::done() const { return fiber_.done() && io_.idle(); }

}  // namespace holdfast::ckpt

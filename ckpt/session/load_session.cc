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

struct Loader::State {
  State(Io* io, std::string dir, const Manifest* manifest,
        const std::vector<ItemSpec>* items, const Holding* wanted,
        const LoadTarget* target, const UnitReaderOptions& options)
      : io(io),
        reader(io, std::move(dir), manifest, options),
        manifest(manifest),
        items(items),
        wanted(wanted),
        target(target) {}

  Io* const io;
  UnitReader reader;
  const Manifest* const manifest;
  const std::vector<ItemSpec>* const items;
  const Holding* const wanted;
  const LoadTarget* const target;
  LoadPlan plan;
  std::optional<Scatter> scatter;
  uint64_t bytes_put = 0;
  LoadOutcome outcome;
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
  const absl::Status status = co_await Load();
  LoadOutcome& outcome = state_->outcome;
  outcome.status = status;
  if (!state_->reader.damage().empty()) {
    outcome.damage = state_->reader.damage().front();
  }
  outcome.bytes_read = state_->reader.bytes_read();
  outcome.bytes_placed = state_->reader.bytes_placed();
  outcome.seconds = absl::ToDoubleSeconds(clock.Monotonic() - begin);
  co_return status;
}

Task<absl::Status> Loader::Load() {
  State& state = *state_;
  const Manifest& manifest = *state.manifest;
  auto planned = PlanLoad(manifest, *state.items, *state.wanted);
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
    FileWant::Place place = [&scatter, &state, file](uint64_t offset,
                                                     uint64_t size) {
      return scatter.PlaceOf(file, offset, size, state.target->regions());
    };
    wants.push_back({file, std::move(pick), std::move(place)});
  }
  UnitReader::Sink sink = [&state](uint32_t file, uint64_t offset,
                                   std::span<const std::byte> bytes) {
    state.bytes_put += state.scatter->ScatterBytes(file, offset, bytes,
                                                   state.target->regions());
  };
  const absl::Status read =
      co_await state.reader.Read(std::move(wants), std::move(sink));
  if (!read.ok()) co_return read;
  HF_CHECK(state.bytes_put == state.plan.bytes_wanted,
           "%d bytes came into place, %d were wanted", state.bytes_put,
           state.plan.bytes_wanted);
  co_return absl::OkStatus();
}

void Loader::Cancel() { state_->reader.Cancel(); }

LoadProgress Loader::progress() const {
  return {state_->bytes_put, state_->plan.bytes_wanted};
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

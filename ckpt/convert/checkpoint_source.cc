// ckpt/convert/checkpoint_source.cc: see checkpoint_source.h.

#include "ckpt/convert/checkpoint_source.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/plan/load_plan.h"
#include "ckpt/plan/scatter.h"
#include "ckpt/session/catalog.h"
#include "ckpt/session/io.h"

namespace holdfast::ckpt {
namespace {

constexpr uint16_t kSpace = 1;

// One thread's way to the files: a storage of its own, and what reads units.
class SourceReader {
 public:
  SourceReader(std::unique_ptr<Storage> storage, Clock* clock, std::string dir,
               const Manifest* manifest, const UnitReaderOptions& options)
      : storage_(std::move(storage)),
        io_(EnvOf(storage_.get(), clock)),
        units_(&io_, std::move(dir), manifest, options) {}

  absl::Status Read(std::vector<FileWant> wants, UnitReader::Sink sink) {
    absl::Status result;
    Fiber fiber;
    fiber.Start(Run(std::move(wants), std::move(sink), &result));
    while (true) {
      fiber.Poll();
      if (fiber.done() && io_.idle()) return result;
      Completion answers[64];
      const size_t count = storage_->Poll(answers);
      for (size_t i = 0; i < count; ++i) io_.OnCompletion(answers[i]);
      if (count == 0) storage_->WaitForCompletion(/*wait_ms=*/100);
    }
  }

  uint64_t bytes_read() const { return units_.bytes_read(); }

 private:
  static SessionEnv EnvOf(Storage* storage, Clock* clock) {
    SessionEnv env;
    env.storage = storage;
    env.clock = clock;
    env.space = kSpace;
    env.ops_max = storage->queue_depth();
    return env;
  }

  Task<bool> Run(std::vector<FileWant> wants, UnitReader::Sink sink,
                 absl::Status* result) {
    const absl::Status status =
        co_await units_.Read(std::move(wants), std::move(sink));
    *result = status;
    co_return status.ok();
  }

  std::unique_ptr<Storage> storage_;
  Io io_;
  UnitReader units_;
};

}  // namespace

struct CheckpointSource::State {
  CheckpointSourceOptions options;
  Clock* clock = nullptr;
  LocatedCheckpoint place;
  std::string path;
  std::unique_ptr<Manifest> manifest;
  Digest128 manifest_digest;  // of the file's bytes
  std::optional<LoadPlanner> planner;

  std::mutex lock;
  std::condition_variable returned;
  std::vector<std::unique_ptr<SourceReader>> idle;
  std::atomic<uint64_t> bytes_read = 0;
};

CheckpointSource::CheckpointSource(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
CheckpointSource::~CheckpointSource() = default;

absl::StatusOr<std::unique_ptr<CheckpointSource>> CheckpointSource::Open(
    const std::string& text, const CheckpointSourceOptions& options,
    Clock& clock) {
  HF_CHECK(options.readers > 0, "a source with %d readers", options.readers);
  auto state = std::make_unique<State>();
  state->options = options;
  state->clock = &clock;
  StorageOptions storage;
  storage.queue_depth = options.queue_depth;
  HF_ASSIGN_OR_RETURN(state->place, LocateCheckpoint(text, storage, clock));
  state->path = state->place.path();
  SessionEnv env;
  env.storage = state->place.storage.get();
  env.clock = &clock;
  env.space = kSpace;
  env.ops_max = env.storage->queue_depth();
  ManifestSession session(env, state->place.dir);
  RunAlone(env.storage, &clock, &session);
  if (!session.result().ok()) {
    const absl::Status& status = session.result().status();
    return absl::Status(status.code(),
                        absl::StrFormat("%s: %s", state->place.root,
                                        std::string(status.message())));
  }
  state->manifest = *std::move(session.result());
  const std::vector<std::byte>& encoded = session.encoded();
  state->manifest_digest = DigestBytes(
      {reinterpret_cast<const char*>(encoded.data()), encoded.size()});
  const std::vector<bool> all(state->manifest->items.size(), true);
  HF_ASSIGN_OR_RETURN(
      LoadPlanner planner,
      LoadPlanner::Create(*state->manifest, state->manifest->items, all));
  state->planner.emplace(std::move(planner));

  storage.location = state->place.root;
  for (int i = 0; i < options.readers; ++i) {
    std::unique_ptr<Storage> opened = std::move(state->place.storage);
    if (i > 0) {
      HF_ASSIGN_OR_RETURN(opened, OpenStorage(storage));
    }
    state->idle.push_back(std::make_unique<SourceReader>(
        std::move(opened), &clock, state->place.dir, state->manifest.get(),
        options.read));
  }
  return std::unique_ptr<CheckpointSource>(
      new CheckpointSource(std::move(state)));
}

absl::Status CheckpointSource::Fill(std::span<const WantedRun> wants) {
  State& state = *state_;
  LoadPlan plan;
  std::vector<std::span<std::byte>> regions;
  for (const WantedRun& want : wants) {
    const ItemSpec& item = state.manifest->items[want.item];
    HF_CHECK(want.out.size() == BytesOf(item, want.count),
             "%d bytes for %d elements of %s", want.out.size(), want.count,
             item.name);
    const Fragment fragment = {.item = want.item,
                               .part = want.part,
                               .first = want.first,
                               .count = want.count,
                               .region = static_cast<uint32_t>(regions.size())};
    regions.push_back(want.out);
    HF_RETURN_IF_ERROR(state.planner->Append(fragment, &plan.steps));
    plan.bytes_wanted += want.out.size();
  }
  SortAndJoin(&plan.steps);
  const Scatter scatter(plan);
  std::vector<FileWant> reads;
  for (const uint32_t file : scatter.files()) {
    FileWant::Pick pick = [&scatter, file](std::span<const Unit> units,
                                           uint64_t bytes_max) {
      return scatter.UnitsToRead(file, units, bytes_max);
    };
    reads.push_back({file, std::move(pick)});
  }

  std::unique_ptr<SourceReader> reader;
  {
    std::unique_lock guard(state.lock);
    state.returned.wait(guard, [&state] { return !state.idle.empty(); });
    reader = std::move(state.idle.back());
    state.idle.pop_back();
  }
  uint64_t filled = 0;
  const uint64_t read_before = reader->bytes_read();
  const absl::Status status = reader->Read(
      std::move(reads),
      [&](uint32_t file, uint64_t offset, std::span<const std::byte> bytes) {
        filled += scatter.ScatterBytes(file, offset, bytes, regions);
      });
  state.bytes_read += reader->bytes_read() - read_before;
  {
    const std::lock_guard guard(state.lock);
    state.idle.push_back(std::move(reader));
  }
  state.returned.notify_one();
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrFormat("reading %s: %s", state.path,
                                        std::string(status.message())));
  }
  HF_CHECK(filled == plan.bytes_wanted, "%d of %d wanted bytes came", filled,
           plan.bytes_wanted);
  return absl::OkStatus();
}

const std::vector<ItemSpec>& CheckpointSource::items() const {
  return state_->manifest->items;
}
const std::map<std::string, std::string>& CheckpointSource::attributes() const {
  return state_->manifest->attributes;
}
int CheckpointSource::fills_at_once() const { return state_->options.readers; }

std::string CheckpointSource::identity() const {
  return absl::StrFormat(
      "checkpoint %s of run %s, manifest %s", ToString(state_->manifest->id),
      ToHex(state_->manifest->run_id), ToHex(state_->manifest_digest));
}

std::span<const Digest128> CheckpointSource::recorded_digests() const {
  return state_->manifest->item_digests;
}
uint64_t CheckpointSource::bytes_read() const { return state_->bytes_read; }
const Manifest& CheckpointSource::manifest() const { return *state_->manifest; }
const std::string& CheckpointSource::path() const { return state_->path; }

}  // namespace holdfast::ckpt

// ckpt/convert/checkpoint_source.cc: see checkpoint_source.h.

#include "ckpt/convert/checkpoint_source.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/convert/kept_units.h"
#include "ckpt/convert/source_reader.h"
#include "ckpt/plan/load_plan.h"
#include "ckpt/plan/scatter.h"
#include "ckpt/session/catalog.h"
#include "ckpt/session/io.h"

namespace holdfast::ckpt {
namespace {

constexpr uint16_t kSpace = 1;
// Of the files' indexes, 16 bytes a unit: those of some terabytes.
constexpr uint64_t kIndexBytesMax = uint64_t{32} << 20;

// How many bytes of items lie in [begin, end) of a file.
uint64_t DataBytes(const ShardFile& file, uint64_t begin, uint64_t end) {
  uint64_t bytes = 0;
  auto chunk = std::partition_point(
      file.chunks.begin(), file.chunks.end(),
      [begin](const Chunk& c) { return c.offset + c.bytes_stored <= begin; });
  for (; chunk != file.chunks.end() && chunk->offset < end; ++chunk) {
    bytes += std::min(end, chunk->offset + chunk->bytes_stored) -
             std::max(begin, chunk->offset);
  }
  return bytes;
}

uint64_t EndInFile(const ReadStep& step) {
  return step.file_offset + (step.rows - 1) * step.file_stride + step.row_bytes;
}

}  // namespace

struct CheckpointSource::State {
  CheckpointSourceOptions options;
  Clock* clock = nullptr;
  LocatedCheckpoint place;
  std::string path;
  std::unique_ptr<Manifest> manifest;
  Digest128 manifest_digest;  // of the file's bytes
  std::optional<LoadPlanner> planner;
  std::optional<UnitIndexes> indexes;
  std::optional<KeptUnits> kept;

  absl::Status FillFrom(SourceReader& reader, const LoadPlan& plan,
                        std::span<const std::span<std::byte>> regions);

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

  state->indexes.emplace(state->manifest->files.size(), kIndexBytesMax);
  state->kept.emplace(options.kept_bytes_max);
  storage.location = state->place.root;
  for (int i = 0; i < options.readers; ++i) {
    std::unique_ptr<Storage> opened = std::move(state->place.storage);
    if (i > 0) {
      HF_ASSIGN_OR_RETURN(opened, OpenStorage(storage));
    }
    state->idle.push_back(std::make_unique<SourceReader>(
        std::move(opened), &clock, state->place.dir, state->manifest.get(),
        &*state->indexes, options.read));
  }
  return std::unique_ptr<CheckpointSource>(
      new CheckpointSource(std::move(state)));
}

absl::Status CheckpointSource::State::FillFrom(
    SourceReader& reader, const LoadPlan& plan,
    std::span<const std::span<std::byte>> regions) {
  const Scatter scatter(plan);
  uint64_t filled = 0;
  std::vector<SourceReader::Wanted> reads;
  std::set<KeptUnits::Key> promised;
  std::vector<KeptUnits::Key> coming;
  size_t step = 0;
  for (const uint32_t file : scatter.files()) {
    auto index = reader.IndexOf(file);
    if (!index.ok()) {
      for (const KeptUnits::Key& key : promised) kept->GiveUp(key);
      for (const KeptUnits::Key& key : coming) kept->Await(key);
      return index.status();
    }
    const uint64_t begin = plan.steps[step].file_offset;
    uint64_t end = begin;
    for (; step < plan.steps.size() && plan.steps[step].file == file; ++step) {
      end = std::max(end, EndInFile(plan.steps[step]));
    }
    SourceReader::Wanted wanted = {file, *index, {}};
    auto unit = std::partition_point(
        (*index)->begin(), (*index)->end(),
        [begin](const Unit& u) { return u.offset + u.bytes <= begin; });
    for (; unit != (*index)->end() && unit->offset < end; ++unit) {
      const uint64_t unit_end = unit->offset + unit->bytes;
      const uint64_t wants = scatter.PackedBytes(file, unit->offset, unit_end);
      if (wants == 0) continue;
      const KeptUnits::Key key = {
          file, static_cast<uint32_t>(unit - (*index)->begin())};
      KeptUnits::Bytes bytes;
      switch (kept->Find(
          key, unit->bytes, wants,
          DataBytes(manifest->files[file], unit->offset, unit_end), &bytes)) {
        case KeptUnits::Found::kHere:
          filled += scatter.ScatterBytes(file, unit->offset, *bytes, regions);
          break;
        case KeptUnits::Found::kComing:
          coming.push_back(key);
          break;
        case KeptUnits::Found::kMine:
          promised.insert(key);
          [[fallthrough]];
        case KeptUnits::Found::kNobody:
          wanted.units.push_back(key.second);
          break;
      }
    }
    if (!wanted.units.empty() || !coming.empty()) {
      reads.push_back(std::move(wanted));
    }
  }
  const SourceReader::Deliver deliver = [&](uint32_t file, uint32_t unit,
                                            std::span<const std::byte> bytes) {
    const auto wanted = std::find_if(
        reads.begin(), reads.end(),
        [file](const SourceReader::Wanted& w) { return w.file == file; });
    filled += scatter.ScatterBytes(file, (*wanted->index)[unit].offset, bytes,
                                   regions);
    if (promised.erase({file, unit}) > 0) kept->Put({file, unit}, bytes);
  };
  absl::Status status = reader.Read(reads, deliver);
  for (const KeptUnits::Key& key : promised) kept->GiveUp(key);
  for (const KeptUnits::Key& key : coming) {
    const KeptUnits::Bytes bytes = kept->Await(key);
    if (!status.ok()) continue;
    const auto wanted = std::find_if(
        reads.begin(), reads.end(),
        [&key](const SourceReader::Wanted& w) { return w.file == key.first; });
    if (bytes) {
      deliver(key.first, key.second, *bytes);
      continue;
    }
    const std::vector<SourceReader::Wanted> alone = {
        {key.first, wanted->index, {key.second}}};
    status = reader.Read(alone, deliver);
  }
  if (!status.ok()) return status;
  HF_CHECK(filled == plan.bytes_wanted, "%d of %d wanted bytes came", filled,
           plan.bytes_wanted);
  return absl::OkStatus();
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

  std::unique_ptr<SourceReader> reader;
  {
    std::unique_lock guard(state.lock);
    state.returned.wait(guard, [&state] { return !state.idle.empty(); });
    reader = std::move(state.idle.back());
    state.idle.pop_back();
  }
  const uint64_t read_before = reader->bytes_read();
  const absl::Status status = state.FillFrom(*reader, plan, regions);
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

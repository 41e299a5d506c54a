// ckpt/session/load_session.cc: plan, read, scatter.

#include "ckpt/session/load_session.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/base/check.h"
#include "ckpt/format/shard.h"
#include "ckpt/plan/load_plan.h"

namespace holdfast::ckpt {
namespace {

std::string ShapeText(const ItemSpec& item) {
  return absl::StrFormat("%s[%s]", std::string(NameOf(item.dtype)),
                         absl::StrJoin(item.shape, ","));
}

std::string ItemText(const ItemSpec& item) {
  return absl::StrFormat("%s of '%s'", item.kind, item.name);
}

// Bytes of the file from the first row's begin to the last row's end.
uint64_t EndOf(const ReadStep& step) {
  return step.file_offset + (step.rows - 1) * step.file_stride + step.row_bytes;
}

// The ranges of a step. Rows whose gaps are smaller than a unit count as one:
// what lies in such a gap is read anyhow, or little.
void AddRanges(const ReadStep& step, std::vector<ByteRange>* ranges) {
  if (step.file_stride - step.row_bytes <= kUnitBytesMax || step.rows == 1) {
    ranges->push_back({step.file_offset, EndOf(step)});
    return;
  }
  for (uint64_t row = 0; row < step.rows; ++row) {
    const uint64_t first = step.file_offset + row * step.file_stride;
    ranges->push_back({first, first + step.row_bytes});
  }
}

// The steps of one file, to be found by the bytes that a read has brought.
class FileSteps {
 public:
  explicit FileSteps(std::span<const ReadStep> steps) : steps_(steps) {
    uint64_t end = 0;
    for (const ReadStep& step : steps) {
      end = std::max(end, EndOf(step));
      end_max_.push_back(end);
    }
  }

  // Puts the wanted ones of the bytes [offset, offset + size) into place and
  // returns how many they were.
  uint64_t Scatter(uint64_t offset, std::span<const std::byte> bytes,
                   LoadTarget* target) const {
    uint64_t put = 0;
    // Steps before the first one that reaches beyond `offset` are over.
    size_t i = std::upper_bound(end_max_.begin(), end_max_.end(), offset) -
               end_max_.begin();
    for (; i < steps_.size() && steps_[i].file_offset < offset + bytes.size();
         ++i) {
      put += ScatterStep(steps_[i], offset, bytes, target);
    }
    return put;
  }

 private:
  static uint64_t ScatterStep(const ReadStep& step, uint64_t offset,
                              std::span<const std::byte> bytes,
                              LoadTarget* target) {
    const uint64_t end = offset + bytes.size();
    uint64_t row = 0;
    if (step.rows > 1 && step.file_offset + step.row_bytes <= offset) {
      // The first row that ends beyond `offset`.
      row = (offset - step.file_offset - step.row_bytes) / step.file_stride + 1;
    }
    uint64_t put = 0;
    for (; row < step.rows; ++row) {
      const uint64_t row_first = step.file_offset + row * step.file_stride;
      if (row_first >= end) break;
      const uint64_t from = std::max(row_first, offset);
      const uint64_t to = std::min(row_first + step.row_bytes, end);
      if (from >= to) continue;
      target->Put(
          step.region,
          step.region_offset + row * step.region_stride + (from - row_first),
          bytes.subspan(from - offset, to - from));
      put += to - from;
    }
    return put;
  }

  std::span<const ReadStep> steps_;
  std::vector<uint64_t> end_max_;  // of steps 0 to i
};

}  // namespace

void HostTarget::Put(uint32_t region, uint64_t offset,
                     std::span<const std::byte> bytes) {
  HF_CHECK(region < regions_.size() && offset <= regions_[region].size() &&
               bytes.size() <= regions_[region].size() - offset,
           "loaded bytes %d+%d do not fit into region %d", offset, bytes.size(),
           region);
  std::copy(bytes.begin(), bytes.end(), regions_[region].begin() + offset);
}

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
        LoadTarget* target, const UnitReaderOptions& options)
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
  LoadTarget* const target;
  LoadPlan plan;
  std::map<uint32_t, FileSteps> by_file;
  uint64_t bytes_put = 0;
  LoadOutcome outcome;
};

Loader::Loader(Io* io, std::string dir, const Manifest* manifest,
               const std::vector<ItemSpec>* items, const Holding* wanted,
               LoadTarget* target, const UnitReaderOptions& options)
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
  outcome.seconds = absl::ToDoubleSeconds(clock.Monotonic() - begin);
  co_return status;
}

Task<absl::Status> Loader::Load() {
  State& state = *state_;
  const Manifest& manifest = *state.manifest;
  for (const ShardFile& file : manifest.files) {
    for (const Chunk& chunk : file.chunks) {
      if (chunk.codec == Codec::kNone) continue;
      co_return absl::FailedPreconditionError(absl::StrFormat(
          "loading %s: %s is stored with codec %d, which this program does not "
          "read",
          ToString(manifest.id), file.name, static_cast<int>(chunk.codec)));
    }
  }
  auto planned = PlanLoad(manifest, *state.items, *state.wanted);
  if (!planned.ok()) co_return planned.status();
  state.plan = *std::move(planned);
  state.outcome.bytes_wanted = state.plan.bytes_wanted;

  std::vector<FileWant> wants;
  const std::span<const ReadStep> steps = state.plan.steps;
  for (size_t first = 0; first < steps.size();) {
    size_t end = first;
    FileWant want{steps[first].file, {}, false};
    while (end < steps.size() && steps[end].file == want.file) {
      AddRanges(steps[end], &want.ranges);
      ++end;
    }
    state.by_file.emplace(want.file,
                          FileSteps(steps.subspan(first, end - first)));
    wants.push_back(std::move(want));
    first = end;
  }

  UnitReader::Sink sink = [&state](uint32_t file, uint64_t offset,
                                   std::span<const std::byte> bytes) {
    state.bytes_put +=
        state.by_file.at(file).Scatter(offset, bytes, state.target);
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
                         const Holding* wanted, LoadTarget* target,
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

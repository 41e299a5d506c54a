// ckpt/session/verify_session.cc: everything through the reader, and the
// digests on the way.

#include "ckpt/session/verify_session.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"

namespace holdfast::ckpt {
namespace {

// Of one file; an index has 16 bytes for up to 1 MiB of data, so reading it so
// often costs half a percent.
constexpr uint64_t kPartsMax = 256;

// The units that begin in [first, end), so that each is in one part.
FileWant::Pick PickBegun(uint64_t first, uint64_t end) {
  return [first, end](std::span<const Unit> units, uint64_t bytes_max) {
    std::vector<UnitRead> reads;
    for (uint32_t i = 0; i < units.size(); ++i) {
      if (units[i].offset < first || units[i].offset >= end) continue;
      AddToReads(i, units[i], bytes_max, &reads);
    }
    return reads;
  };
}

absl::Status CompareDigests(const Manifest& manifest, VerifyOutcome* outcome) {
  for (ItemIndex i = 0; i < manifest.items.size(); ++i) {
    if (outcome->item_digests[i] != manifest.item_digests[i]) {
      outcome->digests_wrong.push_back(i);
    }
  }
  if (outcome->digests_wrong.empty()) return absl::OkStatus();
  const ItemIndex first = outcome->digests_wrong.front();
  return absl::DataLossError(absl::StrFormat(
      "%s of '%s': the bytes have logical digest %s, the manifest records "
      "%s; %d of %d items differ",
      manifest.items[first].kind, manifest.items[first].name,
      ToHex(outcome->item_digests[first]), ToHex(manifest.item_digests[first]),
      outcome->digests_wrong.size(), manifest.items.size()));
}

}  // namespace

std::optional<VerifyPart> VerifyParts::Next() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (at_.file >= manifest_->files.size()) return std::nullopt;
  VerifyPart part = at_;
  const uint64_t end = manifest_->files[part.file].data_end();
  // Each part reads the file's index again.
  const uint64_t bytes = std::max(part_bytes_, end / kPartsMax);
  if (end > part.first && end - part.first > bytes + bytes / 2) {
    part.end = at_.first = part.first + bytes;
  } else {
    at_ = {part.file + 1};
  }
  return part;
}

void VerifyParts::Drop(uint32_t file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (at_.file == file) at_ = {file + 1};
}

void VerifyParts::DropAll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  at_ = {static_cast<uint32_t>(manifest_->files.size())};
}

VerifyOutcome MergeVerified(const Manifest& manifest, bool hash,
                            std::span<const VerifyOutcome> found) {
  VerifyOutcome all;
  if (hash) all.item_digests.resize(manifest.items.size());
  for (const VerifyOutcome& one : found) {
    // What stopped one of them says more than the damage that another found.
    if (!one.status.ok() && (all.status.ok() || absl::IsDataLoss(all.status))) {
      all.status = one.status;
    }
    all.damage.insert(all.damage.end(), one.damage.begin(), one.damage.end());
    all.bytes_read += one.bytes_read;
    all.seconds = std::max(all.seconds, one.seconds);
    for (ItemIndex i = 0; i < one.item_digests.size() && hash; ++i) {
      all.item_digests[i] += one.item_digests[i];
    }
  }
  // Damage around a file's data is met with each of its parts.
  std::sort(all.damage.begin(), all.damage.end(),
            [](const UnitDamage& a, const UnitDamage& b) {
              return std::tie(a.file, a.offset, a.what) <
                     std::tie(b.file, b.offset, b.what);
            });
  all.damage.erase(std::unique(all.damage.begin(), all.damage.end()),
                   all.damage.end());
  if (absl::IsDataLoss(all.status) && !all.damage.empty()) {
    all.status = absl::DataLossError(ToString(all.damage.front()));
  }
  if (all.status.ok() && hash) all.status = CompareDigests(manifest, &all);
  return all;
}

struct VerifySession::State {
  State(const SessionEnv& env, std::string dir, const Manifest* manifest,
        bool hash, UnitReaderOptions options, VerifyParts* parts)
      : io(env),
        reader(&io, std::move(dir), manifest, Collecting(options)),
        manifest(manifest),
        hash(hash),
        damage_max(options.damage_max),
        parts(parts) {
    for (const ShardFile& file : manifest->files) bytes_total += file.bytes;
    fiber.Start(Run());
  }

  static UnitReaderOptions Collecting(UnitReaderOptions options) {
    options.read_past_damage = true;
    return options;
  }

  // Adds what [offset, offset + size) of a file contributes to its items.
  void Hash(uint32_t file, uint64_t offset, std::span<const std::byte> bytes) {
    const std::vector<Chunk>& chunks = manifest->files[file].chunks;
    const uint64_t end = offset + bytes.size();
    // Chunks lie apart and by offset, so their ends ascend as well.
    auto chunk = std::partition_point(
        chunks.begin(), chunks.end(), [offset](const Chunk& candidate) {
          return candidate.offset + candidate.bytes_stored <= offset;
        });
    for (; chunk != chunks.end() && chunk->offset < end; ++chunk) {
      const ItemSpec& item = manifest->items[chunk->item];
      const uint64_t size = SizeOf(item.dtype);
      const uint64_t from = std::max(offset, chunk->offset);
      const uint64_t to = std::min(end, chunk->offset + chunk->bytes_stored);
      if (from >= to) continue;
      outcome.item_digests[chunk->item] += DigestRun(
          item, chunk->part, chunk->first + (from - chunk->offset) / size,
          (to - from) / size, bytes.subspan(from - offset, to - from));
    }
  }

  Task<bool> Run() {
    const absl::Duration begin = io.clock().Monotonic();
    UnitReader::Sink sink = [this](uint32_t file, uint64_t offset,
                                   std::span<const std::byte> bytes) {
      if (hash) Hash(file, offset, bytes);
    };
    if (hash) outcome.item_digests.resize(manifest->items.size());
    absl::Status status;
    if (parts != nullptr) {
      status = co_await ReadParts(&sink);
    } else {
      std::vector<FileWant> wants;
      for (uint32_t file = 0; file < manifest->files.size(); ++file) {
        wants.push_back({file, PickAll()});
      }
      status = co_await reader.Read(std::move(wants), sink);
    }
    outcome.damage = reader.damage();
    outcome.bytes_read = bytes_once();
    outcome.seconds = absl::ToDoubleSeconds(io.clock().Monotonic() - begin);
    if (status.ok() && hash && parts == nullptr) {
      status = CompareDigests(*manifest, &outcome);
    }
    outcome.status = std::move(status);
    co_return true;
  }

  Task<absl::Status> ReadParts(const UnitReader::Sink* sink) {
    absl::Status status;
    while (const std::optional<VerifyPart> part = parts->Next()) {
      const uint64_t around_before = reader.bytes_read() - reader.bytes_done();
      const size_t damage_before = reader.damage().size();
      std::vector<FileWant> wants = {
          {part->file, PickBegun(part->first, part->end)}};
      const absl::Status read = co_await reader.Read(std::move(wants), *sink);
      if (part->first > 0) {
        bytes_again +=
            reader.bytes_read() - reader.bytes_done() - around_before;
      }
      if (read.ok()) continue;
      status = read;
      if (!absl::IsDataLoss(read)) {
        parts->DropAll();
        break;
      }
      // The reader also says so of damage that it met in an earlier part.
      const std::vector<UnitDamage>& damage = reader.damage();
      if (damage.size() > damage_before && damage.back().bytes == 0) {
        parts->Drop(part->file);
      }
      if (damage.size() >= damage_max) parts->DropAll();
    }
    co_return status;
  }

  uint64_t bytes_once() const { return reader.bytes_read() - bytes_again; }

  Io io;
  UnitReader reader;
  const Manifest* const manifest;
  const bool hash;
  const size_t damage_max;
  VerifyParts* const parts;  // or all at once
  uint64_t bytes_total = 0;
  uint64_t bytes_again = 0;
  VerifyOutcome outcome;
  Fiber fiber;
};

VerifySession::VerifySession(const SessionEnv& env, std::string dir,
                             const Manifest* manifest, bool hash,
                             const UnitReaderOptions& options)
    : VerifySession(env, std::move(dir), manifest, hash, options, nullptr) {}

VerifySession::VerifySession(const SessionEnv& env, std::string dir,
                             const Manifest* manifest, bool hash,
                             const UnitReaderOptions& options,
                             VerifyParts* parts)
    : state_(std::make_unique<State>(env, std::move(dir), manifest, hash,
                                     options, parts)) {}

VerifySession::~VerifySession() = default;

void VerifySession::OnCompletion(const Completion& completion) {
  state_->io.OnCompletion(completion);
}
bool VerifySession::OnMessage(const Message&) { return false; }
void VerifySession::Poll() { state_->fiber.Poll(); }
bool VerifySession::done() const {
  return state_->fiber.done() && state_->io.idle();
}
LoadProgress VerifySession::progress() const {
  return {state_->bytes_once(), state_->bytes_total};
}
const VerifyOutcome& VerifySession::outcome() const { return state_->outcome; }

}  // namespace holdfast::ckpt

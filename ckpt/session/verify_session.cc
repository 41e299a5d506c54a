// ckpt/session/verify_session.cc: everything through the reader, and the
// digests on the way.

#include "ckpt/session/verify_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace holdfast::ckpt {

struct VerifySession::State {
  State(const SessionEnv& env, std::string dir, const Manifest* manifest,
        bool hash, UnitReaderOptions options)
      : io(env),
        reader(&io, std::move(dir), manifest, Collecting(options)),
        manifest(manifest),
        hash(hash) {
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
    std::vector<FileWant> wants;
    for (uint32_t file = 0; file < manifest->files.size(); ++file) {
      wants.push_back({file, PickAll()});
    }
    absl::Status status =
        co_await reader.Read(std::move(wants), std::move(sink));
    outcome.damage = reader.damage();
    outcome.bytes_read = reader.bytes_read();
    outcome.seconds = absl::ToDoubleSeconds(io.clock().Monotonic() - begin);
    if (status.ok() && hash) status = CompareDigests();
    outcome.status = std::move(status);
    co_return true;
  }

  absl::Status CompareDigests() {
    for (ItemIndex i = 0; i < manifest->items.size(); ++i) {
      if (outcome.item_digests[i] != manifest->item_digests[i]) {
        outcome.digests_wrong.push_back(i);
      }
    }
    if (outcome.digests_wrong.empty()) return absl::OkStatus();
    const ItemIndex first = outcome.digests_wrong.front();
    return absl::DataLossError(absl::StrFormat(
        "%s of '%s': the bytes have logical digest %s, the manifest records "
        "%s; %d of %d items differ",
        manifest->items[first].kind, manifest->items[first].name,
        ToHex(outcome.item_digests[first]),
        ToHex(manifest->item_digests[first]), outcome.digests_wrong.size(),
        manifest->items.size()));
  }

  Io io;
  UnitReader reader;
  const Manifest* const manifest;
  const bool hash;
  uint64_t bytes_total = 0;
  VerifyOutcome outcome;
  Fiber fiber;
};

VerifySession::VerifySession(const SessionEnv& env, std::string dir,
                             const Manifest* manifest, bool hash,
                             const UnitReaderOptions& options)
    : state_(std::make_unique<State>(env, std::move(dir), manifest, hash,
                                     options)) {}

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
  return {state_->reader.bytes_read(), state_->bytes_total};
}
const VerifyOutcome& VerifySession::outcome() const { return state_->outcome; }

}  // namespace holdfast::ckpt

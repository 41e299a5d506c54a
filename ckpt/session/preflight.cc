// ckpt/session/preflight.cc: see preflight.h.

#include "ckpt/session/preflight.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/while.h"
#include "ckpt/format/wire.h"
#include "ckpt/session/message_wire.h"

namespace holdfast::ckpt {
namespace {

// More than any nonce has.
constexpr uint64_t kNonceBytesMax = 4096;

std::string Gigabytes(uint64_t bytes) {
  if (bytes < 10'000'000) return absl::StrFormat("%.1f kB", bytes / 1e3);
  return absl::StrFormat("%.2f GB", bytes / 1e9);
}

}  // namespace

std::vector<std::byte> Encode(const PreflightMessage& message) {
  Writer writer;
  writer.String(message.dir);
  writer.String(message.name);
  writer.String(message.nonce);
  return writer.Take();
}

absl::StatusOr<PreflightMessage> DecodePreflight(
    std::span<const std::byte> body) {
  Reader reader(body);
  PreflightMessage message;
  message.dir = reader.String();
  message.name = reader.String();
  message.nonce = reader.String();
  return IfWhole(reader, std::move(message), "preflight");
}

std::vector<std::byte> Encode(const PreflightReport& message) {
  Writer writer;
  PutStatus(writer, message.status);
  writer.Fixed(static_cast<uint8_t>(message.direct_io));
  return writer.Take();
}

absl::StatusOr<PreflightReport> DecodePreflightReport(
    std::span<const std::byte> body) {
  Reader reader(body);
  PreflightReport message;
  message.status = TakeStatus(reader);
  message.direct_io = reader.Fixed<uint8_t>() != 0;
  return IfWhole(reader, std::move(message), "preflight report");
}

std::string ProbeName(const PreflightMessage& message, Rank rank) {
  return absl::StrFormat("%s.r%05d", message.name, Index(rank));
}

bool IsFirstOfHost(const Group& group) {
  const std::string host = group.HostOf(group.rank());
  for (int rank = 0; rank < Index(group.rank()); ++rank) {
    if (group.HostOf(Rank{rank}) == host) return false;
  }
  return true;
}

Task<absl::Status> SeeNonce(Io* io, const PreflightMessage* message) {
  absl::Status status;
  for (int tries = 1; tries <= kSeeTries; ++tries) {
    const auto bytes = co_await GetFile(io, message->name, kNonceBytesMax);
    if (bytes.ok()) {
      const std::string_view found(reinterpret_cast<const char*>(bytes->data()),
                                   bytes->size());
      if (found == message->nonce) co_return absl::OkStatus();
      status = absl::FailedPreconditionError(
          absl::StrFormat("%s has other contents here", message->name));
      // The beginning of it: an old size, which will be the new one soon.
      if (!std::string_view(message->nonce).starts_with(found)) break;
    } else {
      status = bytes.status();
      if (!absl::IsNotFound(status)) co_return status;
    }
    const absl::Duration at = io->clock().Monotonic() + kSeeWait;
    co_await UntilTime(&io->clock(), at);
  }
  co_return absl::FailedPreconditionError(absl::StrFormat(
      "does not see what rank 0 wrote into the run directory: %s; it is not "
      "one directory that all ranks share",
      std::string(status.message())));
}

Task<absl::Status> ProbeWrite(Io* io, std::string name) {
  const auto block = std::make_shared<AlignedBuffer>(kStorageAlignment);
  const FileId file = io->NewFileId();
  std::function<Io::Ref()> create = [io, &name, file] {
    return io->Create(name, file, kStorageAlignment);
  };
  const absl::Status created = co_await Repeat(io, std::move(create));
  if (!created.ok()) co_return While("trying to create a file", created);
  const Io::Ref written = io->Write(file, 0, block);
  co_await UntilDone(written);
  absl::Status status = While("trying to write 4096 bytes", written->status);
  if (written->status.ok()) {
    const Io::Ref synced = io->Sync(file);
    co_await UntilDone(synced);
    status = While("trying to sync a file", synced->status);
  }
  // A poisoned file says its error again.
  const Io::Ref closed = io->Close(file);
  co_await UntilDone(closed);
  std::function<Io::Ref()> remove = [io, &name] { return io->Remove(name); };
  const absl::Status removed = co_await Repeat(io, std::move(remove));
  if (!status.ok()) co_return status;
  if (!removed.ok()) co_return While("trying to remove a file", removed);
  co_return absl::OkStatus();
}

Task<absl::Status> LookBefore(Io* io, const Group* group,
                              const PreflightMessage* message) {
  if (group->rank() != Rank{0}) {
    const absl::Status seen = co_await SeeNonce(io, message);
    if (!seen.ok()) co_return seen;
  }
  if (!IsFirstOfHost(*group)) co_return absl::OkStatus();
  const absl::Status wrote =
      co_await ProbeWrite(io, ProbeName(*message, group->rank()));
  co_return wrote;
}

absl::Status CheckSpace(uint64_t bytes_free, uint64_t save_bytes,
                        int64_t keep_last, int64_t there,
                        std::string* warning) {
  if (bytes_free < save_bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "a save takes %s over all ranks, and %s are free: not one would fit; "
        "free some space or use another directory",
        Gigabytes(save_bytes), Gigabytes(bytes_free)));
  }
  // The one in the making is there beside those that are kept.
  const int64_t more = std::max<int64_t>(1, keep_last + 1 - there);
  if (bytes_free / static_cast<uint64_t>(more) < save_bytes) {
    *warning = absl::StrFormat(
        "a save takes %s over all ranks and %s are free: checkpoint.keep_last "
        "= %d needs room for %d more; saves will fail when the space is used "
        "up",
        Gigabytes(save_bytes), Gigabytes(bytes_free), keep_last, more);
  }
  return absl::OkStatus();
}

}  // namespace holdfast::ckpt

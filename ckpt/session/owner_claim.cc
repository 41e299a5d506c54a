// ckpt/session/owner_claim.cc: claim, adopt, seal.

#include "ckpt/session/owner_claim.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/while.h"
#include "ckpt/format/manifest.h"

namespace holdfast::ckpt {
namespace {

// Jobs that claim at the same moment; more is not a race but a fault.
constexpr int kClaimTriesMax = 1000;
// Claims of which the storage does not say whether they are there for good.
constexpr int kUnknownClaimsMax = 4;

absl::Status LostTo(uint32_t newer, uint32_t own) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "owner i%04d has taken the run from this job, i%04d: another job runs "
      "in this directory; this one stops and has changed nothing that counts",
      newer, own));
}

Task<absl::Status> Put(Io* io, std::string name,
                       std::vector<std::byte> contents) {
  std::function<Io::Ref()> put = [&] {
    return io->PutIfAbsent(name, contents);
  };
  const absl::Status status = co_await Repeat(io, std::move(put));
  co_return status;
}

// A run.id, put if there is none; the one that is there in the end.
Task<absl::StatusOr<RunId>> PutRunId(Io* io, std::string name, RunId id) {
  const absl::Status status = co_await Put(io, name, EncodeRunId(id));
  if (status.ok()) co_return id;
  if (!absl::IsAlreadyExists(status) && !absl::IsUnknown(status)) {
    co_return While("writing " + name, status);
  }
  const auto bytes = co_await GetFile(io, name, kRecordBytesMax);
  if (!bytes.ok()) co_return bytes.status();
  auto found = DecodeRunId(*bytes);
  if (!found.ok()) co_return While("reading " + name, found.status());
  co_return *found;
}

// Whose checkpoints/ is it that stands in a directory without a run.id? With
// owners beside it, this run's, which has lost the file; without, another's.
Task<absl::StatusOr<std::optional<RunId>>> IdOfCheckpoints(Io* io) {
  const auto bytes =
      co_await GetFile(io, kCheckpointsRunIdName, kRecordBytesMax);
  if (absl::IsNotFound(bytes.status())) co_return std::optional<RunId>();
  if (!bytes.ok()) co_return bytes.status();
  const auto id = DecodeRunId(*bytes);
  if (!id.ok()) {
    co_return While(std::string("reading ") + kCheckpointsRunIdName,
                    id.status());
  }
  const auto claim = co_await NewestClaim(io);
  if (!claim.ok() && !absl::IsNotFound(claim.status())) {
    co_return claim.status();
  }
  if (!claim.ok() || *claim == 0) {
    co_return absl::FailedPreconditionError(absl::StrFormat(
        "%s is that of run %s, and there is neither %s nor an owner here: the "
        "directory belongs to another run; nothing was changed",
        kCheckpointsRunIdName, ToHex(*id), kRunIdName));
  }
  co_return std::optional<RunId>(*id);
}

// The newest incarnation that any name in the run mentions, 0 for none. Claims
// can be lost; a number that was used in checkpoints/ must not come again.
Task<absl::StatusOr<uint32_t>> NewestIncarnation(Io* io) {
  const auto claim = co_await NewestClaim(io);
  if (!claim.ok()) co_return claim.status();
  const auto entries = co_await ListDir(io, kCheckpointsDir);
  if (!entries.ok()) co_return entries.status();
  uint32_t newest = *claim;
  for (const DirEntry& entry : *entries) {
    const auto parsed = ParseCheckpointDir(entry.name);
    if (!parsed) continue;
    newest =
        std::max({newest, parsed->id.incarnation, parsed->owner.value_or(0)});
  }
  co_return newest;
}

}  // namespace

Task<absl::StatusOr<RunId>> PrepareRun(Io* io, RunId id_if_new) {
  const auto own = co_await GetFile(io, kRunIdName, kRecordBytesMax);
  if (absl::IsNotFound(own.status())) {
    const auto kept = co_await IdOfCheckpoints(io);
    if (!kept.ok()) co_return kept.status();
    if (*kept) id_if_new = **kept;
  }
  const auto run_id = co_await PutRunId(io, kRunIdName, id_if_new);
  if (!run_id.ok()) co_return run_id.status();
  const absl::Status owners = co_await EnsureDir(io, kOwnersDir, ".");
  if (!owners.ok()) co_return owners;
  const absl::Status dir = co_await EnsureDir(io, kCheckpointsDir, ".");
  if (!dir.ok()) co_return dir;
  const auto inside = co_await PutRunId(io, kCheckpointsRunIdName, *run_id);
  if (!inside.ok()) co_return inside.status();
  if (*inside != *run_id) {
    co_return absl::FailedPreconditionError(absl::StrFormat(
        "%s is that of run %s, %s says %s: the directory belongs to another "
        "run",
        kCheckpointsRunIdName, ToHex(*inside), kRunIdName, ToHex(*run_id)));
  }
  co_return *run_id;
}

Task<absl::StatusOr<uint32_t>> ClaimNext(Io* io, OwnerClaim claim) {
  const auto newest = co_await NewestIncarnation(io);
  if (!newest.ok()) co_return newest.status();
  claim.incarnation = *newest;
  absl::Status status;
  int unknown = 0;
  for (int i = 0; i < kClaimTriesMax; ++i) {
    if (claim.incarnation == UINT32_MAX) {
      co_return absl::FailedPreconditionError(absl::StrFormat(
          "claiming the run: %d is the last number of an owner that there is, "
          "and something in the run has it; was it put there by hand?",
          claim.incarnation));
    }
    ++claim.incarnation;
    const std::string name = ClaimName(claim.incarnation);
    status = co_await Put(io, name, EncodeClaim(claim));
    if (status.ok()) co_return claim.incarnation;
    if (absl::IsAlreadyExists(status)) continue;
    // Perhaps ours and perhaps not for good: the next number may be certain.
    if (!absl::IsUnknown(status)) break;
    if (++unknown == kUnknownClaimsMax) {
      status = absl::UnavailableError(std::string(status.message()));
      break;
    }
  }
  co_return While("claiming the run with " + ClaimName(claim.incarnation),
                  status);
}

Task<absl::Status> AdoptLine(Io* io, Catalog* catalog, uint32_t incarnation,
                             bool* stale) {
  *stale = false;
  if (!io->storage().traits().has_rename) co_return absl::OkStatus();
  bool moved = false;
  for (const size_t index : catalog->line) {
    CatalogEntry& entry = catalog->entries[index];
    const uint32_t owner = entry.owner.value_or(0);
    if (owner > incarnation) co_return LostTo(owner, incarnation);
    if (owner == incarnation) continue;
    const std::string to = AdoptedDir(entry.id, incarnation);
    // Made twice, the second one does not find it: then it looks again.
    std::function<Io::Ref()> rename = [io, &entry, &to] {
      return io->Rename(entry.dir, to);
    };
    const absl::Status status = co_await Repeat(io, std::move(rename));
    if (absl::IsNotFound(status)) {
      // Retired by its old owner, or adopted by another.
      *stale = true;
      co_return absl::OkStatus();
    }
    if (!status.ok()) co_return While("adopting " + entry.dir, status);
    entry.dir = to;
    entry.owner = incarnation;
    moved = true;
  }
  if (moved) {
    const Io::Ref synced = io->SyncDir(kCheckpointsDir);
    co_await UntilDone(synced);
    if (!synced->status.ok()) {
      co_return While("adopting the run's checkpoints", synced->status);
    }
  }
  // Out of the old owner's reach now. Had it begun to take one away, the
  // manifest was the first to go.
  for (const size_t index : catalog->line) {
    const std::string dir = catalog->entries[index].dir;
    const auto files = co_await ListDir(io, dir);
    if (absl::IsNotFound(files.status())) {
      *stale = true;
      co_return absl::OkStatus();
    }
    if (!files.ok()) co_return files.status();
    *stale |= std::none_of(
        files->begin(), files->end(),
        [](const DirEntry& file) { return file.name == kManifestName; });
  }
  co_return absl::OkStatus();
}

Task<absl::Status> CheckOwner(Io* io, uint32_t incarnation) {
  const auto newest = co_await NewestClaim(io);
  if (!newest.ok()) co_return newest.status();
  if (*newest != incarnation) co_return LostTo(*newest, incarnation);
  co_return absl::OkStatus();
}

Task<absl::Status> PutSeal(Io* io, const OwnerSeal* seal) {
  const std::string name = SealName(seal->incarnation);
  const absl::Status put = co_await Put(io, name, EncodeSeal(*seal));
  if (put.ok()) co_return absl::OkStatus();
  if (absl::IsUnknown(put)) {
    co_return absl::UnavailableError(
        absl::StrFormat("writing %s: %s; start the job again", name,
                        std::string(put.message())));
  }
  co_return While("writing " + name, put);
}

}  // namespace holdfast::ckpt

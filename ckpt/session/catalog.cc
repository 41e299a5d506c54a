// ckpt/session/catalog.cc: gathers what a run directory holds.

#include "ckpt/session/catalog.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/format/manifest_rules.h"
#include "ckpt/format/shard.h"
#include "ckpt/session/preflight.h"

namespace holdfast::ckpt {
namespace {

// How often checkpoints/ may change while it is read. Owners that adopt at the
// same moment change it, each for a while; so does a save, once.
constexpr int kListingsMax = 16;
// Between them, from the third on: together as long as a network file system
// may show an old listing.
const absl::Duration kListingWait = kSeeWait * (kSeeTries / kListingsMax);

std::string InDir(const std::string& dir, const std::string& name) {
  return dir == "." ? name : dir + "/" + name;
}

// The manifest of a directory as the listing wants it, its identity compared.
Task<absl::StatusOr<ManifestSummary>> ReadSummary(Io* io, std::string dir,
                                                  CheckpointId id,
                                                  std::optional<RunId> run_id) {
  std::vector<std::byte> encoded;
  auto manifest = co_await ReadManifest(io, dir, &encoded);
  if (!manifest.ok()) co_return manifest.status();
  const Manifest& found = **manifest;
  if (found.id != id) {
    co_return absl::DataLossError(
        absl::StrFormat("its manifest is that of %s", ToString(found.id)));
  }
  if (run_id && found.run_id != *run_id) {
    co_return absl::DataLossError(
        absl::StrFormat("its manifest belongs to run %s, this is run %s",
                        ToHex(found.run_id), ToHex(*run_id)));
  }
  co_return Summarize(found, encoded);
}

// A file that may be missing.
Task<absl::StatusOr<std::optional<std::vector<std::byte>>>> GetIfThere(
    Io* io, std::string name) {
  auto bytes = co_await GetFile(io, name, kRecordBytesMax);
  if (absl::IsNotFound(bytes.status())) {
    co_return std::optional<std::vector<std::byte>>();
  }
  if (!bytes.ok()) co_return bytes.status();
  co_return std::optional<std::vector<std::byte>>(*std::move(bytes));
}

absl::Status Damaged(const std::string& name, const absl::Status& status) {
  return absl::DataLossError(absl::StrFormat(
      "%s is damaged: %s; checkpoints can still be read by the path of their "
      "directory",
      name, std::string(status.message())));
}

// run.id, owners/ and the newest seal.
Task<absl::Status> ReadOwners(Io* io, RunListing* listing) {
  auto id = co_await GetIfThere(io, kRunIdName);
  if (!id.ok()) co_return id.status();
  if (*id) {
    const auto run_id = DecodeRunId(**id);
    if (!run_id.ok()) co_return Damaged(kRunIdName, run_id.status());
    listing->run_id = *run_id;
  }
  auto entries = co_await ListDir(io, kOwnersDir);
  if (!entries.ok() && !absl::IsNotFound(entries.status())) {
    co_return entries.status();
  }
  uint32_t sealed = 0;
  if (entries.ok()) {
    for (const DirEntry& entry : *entries) {
      const auto parsed = ParseOwnerFile(entry.name);
      if (!parsed) continue;
      if (parsed->is_seal) {
        sealed = std::max(sealed, parsed->incarnation);
      } else {
        listing->claims.push_back(parsed->incarnation);
      }
    }
  }
  std::sort(listing->claims.begin(), listing->claims.end());
  if (sealed == 0) co_return absl::OkStatus();
  const std::string name = SealName(sealed);
  auto bytes = co_await GetFile(io, name, kRecordBytesMax);
  if (!bytes.ok()) co_return bytes.status();
  auto seal = DecodeSeal(*bytes);
  if (!seal.ok()) co_return Damaged(name, seal.status());
  if (seal->incarnation != sealed ||
      (listing->run_id && seal->run_id != *listing->run_id)) {
    co_return Damaged(name, absl::DataLossError(absl::StrFormat(
                                "it is that of owner i%04d of run %s",
                                seal->incarnation, ToHex(seal->run_id))));
  }
  listing->seal = *std::move(seal);
  co_return absl::OkStatus();
}

// checkpoints/ and its manifests. `*changed`: the directory moved under us.
Task<absl::Status> ReadDirs(Io* io, RunListing* listing, bool* changed) {
  listing->dirs.clear();
  listing->has_checkpoints_dir = false;
  *changed = false;
  const auto before = co_await ListDir(io, kCheckpointsDir);
  if (absl::IsNotFound(before.status())) co_return absl::OkStatus();
  if (!before.ok()) co_return before.status();
  auto id = co_await GetIfThere(io, kCheckpointsRunIdName);
  if (!id.ok()) co_return id.status();
  if (*id) {
    const auto run_id = DecodeRunId(**id);
    if (!run_id.ok()) co_return Damaged(kCheckpointsRunIdName, run_id.status());
    if (listing->run_id && *run_id != *listing->run_id) {
      co_return absl::FailedPreconditionError(absl::StrFormat(
          "%s is that of run %s, %s says %s: the directory %s belongs to "
          "another run",
          kCheckpointsRunIdName, ToHex(*run_id), kRunIdName,
          ToHex(*listing->run_id), kCheckpointsDir));
    }
    listing->has_checkpoints_dir = true;
  }
  bool is_old = false;
  for (const DirEntry& entry : *before) {
    const auto parsed = ParseCheckpointDir(entry.name);
    if (!parsed || !entry.is_directory) continue;
    RunListing::Dir dir;
    dir.name = entry.name;
    dir.parsed = *parsed;
    const std::string path =
        absl::StrFormat("%s/%s", kCheckpointsDir, entry.name);
    dir.manifest = co_await ReadSummary(io, path, parsed->id, listing->run_id);
    const absl::StatusCode code = dir.manifest.status().code();
    if (code != absl::StatusCode::kOk && code != absl::StatusCode::kNotFound &&
        code != absl::StatusCode::kDataLoss &&
        code != absl::StatusCode::kFailedPrecondition) {
      co_return dir.manifest.status();
    }
    if (code == absl::StatusCode::kNotFound) {
      *changed = true;
      // An old listing may go on naming what was renamed; then it is no
      // attempt, and the listing is of no use.
      const auto inside = co_await ListDir(io, path);
      is_old |= absl::IsNotFound(inside.status());
    }
    listing->dirs.push_back(std::move(dir));
  }
  if (!*changed) co_return absl::OkStatus();
  // An attempt, or a directory that was renamed or removed meanwhile.
  const auto after = co_await ListDir(io, kCheckpointsDir);
  if (!after.ok()) co_return after.status();
  *changed = is_old || *after != *before;
  co_return absl::OkStatus();
}

// Does the device give anything of the files beside a manifest, which it does
// not give?
Task<bool> GivesOtherFiles(Io* io, std::string dir) {
  constexpr size_t kFilesMax = 4;
  const auto entries = co_await ListDir(io, dir);
  if (!entries.ok()) co_return false;
  std::vector<std::string> names;
  for (const DirEntry& entry : *entries) {
    const std::string name = InDir(dir, entry.name);
    if (!entry.is_directory && entry.name != kManifestName) {
      names.push_back(name);
    } else if (entry.is_directory && IsShardDir(entry.name)) {
      const auto inside = co_await ListDir(io, name);
      if (!inside.ok()) continue;
      for (const DirEntry& file : *inside) {
        if (!file.is_directory) names.push_back(name + "/" + file.name);
        if (names.size() >= kFilesMax) break;
      }
    }
    if (names.size() >= kFilesMax) break;
  }
  const FileId file = io->NewFileId();
  AlignedBuffer block(kShardBlockBytes);
  for (const std::string& name : names) {
    const Io::Ref opened = io->Open(name, file);
    co_await UntilDone(opened);
    if (!opened->status.ok()) continue;
    const Io::Ref read = io->Read(file, 0, block.span());
    co_await UntilDone(read);
    const Io::Ref closed = io->Close(file);
    co_await UntilDone(closed);
    if (read->status.ok()) co_return true;
  }
  co_return false;
}

// Shard directories are directories of this checkpoint: a symbolic link under
// that name would lead out of it. Files in them are no links either (Open).
Task<absl::Status> CheckShardDirs(Io* io, std::string dir,
                                  const Manifest* manifest) {
  std::set<std::string> wanted;
  for (const ShardFile& file : manifest->files) {
    const size_t slash = file.name.find('/');
    if (slash != std::string::npos) wanted.insert(file.name.substr(0, slash));
  }
  if (wanted.empty() || !io->storage().traits().has_directories) {
    co_return absl::OkStatus();
  }
  const auto entries = co_await ListDir(io, dir);
  if (!entries.ok()) co_return entries.status();
  for (const DirEntry& entry : *entries) {
    if (!wanted.contains(entry.name) || entry.is_directory) continue;
    co_return absl::DataLossError(absl::StrFormat(
        "%s is no directory but a file or a symbolic link; shard files behind "
        "it would not be this checkpoint's, and are not read",
        InDir(dir, entry.name)));
  }
  co_return absl::OkStatus();
}

}  // namespace

Task<absl::StatusOr<std::unique_ptr<Manifest>>> ReadManifest(
    Io* io, std::string dir, std::vector<std::byte>* encoded) {
  const std::string name = InDir(dir, kManifestName);
  auto bytes = co_await GetFile(io, name, kManifestBytesMax);
  if (absl::IsUnavailable(bytes.status())) {
    // A storage that is away, or a bad sector? It is the sector when the files
    // beside it can be read, and the manifest then still cannot.
    const bool others = co_await GivesOtherFiles(io, dir);
    if (others) {
      auto again = co_await GetFile(io, name, kManifestBytesMax);
      bytes = std::move(again);
      if (absl::IsUnavailable(bytes.status())) {
        co_return absl::DataLossError(absl::StrFormat(
            "%s, again and again, while the files beside it can be read: a bad "
            "sector, it seems. Without its manifest this checkpoint cannot be "
            "used; the one before it can, or a copy of this one",
            std::string(bytes.status().message())));
      }
    }
  }
  if (absl::IsResourceExhausted(bytes.status()) ||
      absl::IsFailedPrecondition(bytes.status())) {
    // Too long for a manifest, or not a regular file.
    co_return absl::DataLossError(std::string(bytes.status().message()));
  }
  if (!bytes.ok()) co_return bytes.status();
  auto decoded = DecodeManifest(*bytes);
  if (!decoded.ok()) {
    co_return absl::Status(
        decoded.status().code(),
        absl::StrFormat("%s: %s", name,
                        std::string(decoded.status().message())));
  }
  if (encoded != nullptr) *encoded = *std::move(bytes);
  auto manifest = std::make_unique<Manifest>(*std::move(decoded));
  const absl::Status dirs = co_await CheckShardDirs(io, dir, manifest.get());
  if (!dirs.ok()) co_return dirs;
  co_return std::move(manifest);
}

Task<absl::StatusOr<Catalog>> ReadCatalog(Io* io) {
  RunListing listing;
  bool changed = true;
  for (int i = 0; changed && i < kListingsMax; ++i) {
    if (i > 1) {
      const absl::Duration at = io->clock().Monotonic() + kListingWait;
      co_await UntilTime(&io->clock(), at);
    }
    listing = RunListing();
    const absl::Status owners = co_await ReadOwners(io, &listing);
    if (!owners.ok()) co_return owners;
    const absl::Status dirs = co_await ReadDirs(io, &listing, &changed);
    if (!dirs.ok()) co_return dirs;
  }
  if (changed) {
    // What was moved away under this reading would look like an attempt, and an
    // owner would seal without it.
    co_return absl::UnavailableError(
        absl::StrFormat("reading the run: %s kept changing under %d readings",
                        kCheckpointsDir, kListingsMax));
  }
  Catalog catalog = ClassifyRun(std::move(listing));
  if (catalog.line.empty() && !catalog.claims.empty()) {
    const auto entries = co_await ListDir(io, kConversionDir);
    if (!entries.ok() && !absl::IsNotFound(entries.status())) {
      co_return entries.status();
    }
    catalog.is_half_converted =
        entries.ok() && std::any_of(entries->begin(), entries->end(),
                                    [](const DirEntry& entry) {
                                      return entry.name == kConversionRecord;
                                    });
  }
  co_return catalog;
}

Task<absl::StatusOr<uint32_t>> NewestClaim(Io* io) {
  const auto entries = co_await ListDir(io, kOwnersDir);
  if (!entries.ok()) co_return entries.status();
  uint32_t newest = 0;
  for (const DirEntry& entry : *entries) {
    const auto parsed = ParseOwnerFile(entry.name);
    if (parsed) newest = std::max(newest, parsed->incarnation);
  }
  co_return newest;
}

CatalogSession::CatalogSession(const SessionEnv& env) : io_(env) {
  fiber_.Start(Run());
}

Task<bool> CatalogSession::Run() {
  result_ = co_await ReadCatalog(&io_);
  co_return true;
}

void CatalogSession::OnCompletion(const Completion& completion) {
  io_.OnCompletion(completion);
}
bool CatalogSession::OnMessage(const Message&) { return false; }
void CatalogSession::Poll() { fiber_.Poll(); }
bool CatalogSession::done() const { return fiber_.done() && io_.idle(); }

ManifestSession::ManifestSession(const SessionEnv& env, std::string dir)
    : io_(env), dir_(std::move(dir)) {
  fiber_.Start(Run());
}

Task<bool> ManifestSession::Run() {
  auto manifest = co_await ReadManifest(&io_, dir_, &encoded_);
  result_ = std::move(manifest);
  co_return true;
}

void ManifestSession::OnCompletion(const Completion& completion) {
  io_.OnCompletion(completion);
}
bool ManifestSession::OnMessage(const Message&) { return false; }
void ManifestSession::Poll() { fiber_.Poll(); }
bool ManifestSession::done() const { return fiber_.done() && io_.idle(); }

}  // namespace holdfast::ckpt

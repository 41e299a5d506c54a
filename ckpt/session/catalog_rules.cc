// ckpt/session/catalog_rules.cc: which directories count, and why the others do
// not. Pure.

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/format/checksum.h"
#include "ckpt/session/catalog.h"

namespace holdfast::ckpt {
namespace {

// The directory that stands for an id when several have it: one with a
// manifest, then the latest adopter's.
bool Better(const RunListing::Dir& a, const RunListing::Dir& b) {
  const auto rank = [](const RunListing::Dir& dir) {
    return std::tuple(!absl::IsNotFound(dir.manifest.status()),
                      dir.parsed.owner.value_or(0));
  };
  return rank(a) > rank(b);
}

CatalogEntry EntryOf(const RunListing::Dir& dir) {
  CatalogEntry entry;
  entry.id = dir.parsed.id;
  entry.dir = absl::StrFormat("%s/%s", kCheckpointsDir, dir.name);
  entry.owner = dir.parsed.owner;
  if (dir.manifest.ok()) entry.manifest = *dir.manifest;
  return entry;
}

// What seals written before 0.1 was released say of every manifest: the CRC32C
// of bytes that end with their own CRC32C.
constexpr uint32_t kAnyManifestCrc = 0x48674bc7;

void SetState(CatalogEntry& entry, EntryState state, std::string reason) {
  entry.state = state;
  entry.reason = std::move(reason);
}

// The state of something that has a manifest, whole or not, on the line.
void JudgeOnLine(CatalogEntry& entry, const absl::Status& manifest,
                 const SealedCheckpoint* sealed, uint32_t sealer) {
  if (absl::IsNotFound(manifest)) {
    SetState(entry, EntryState::kAttempt, "its manifest is gone");
  } else if (absl::IsFailedPrecondition(manifest)) {
    SetState(entry, EntryState::kNewer, std::string(manifest.message()));
  } else if (!manifest.ok()) {
    SetState(entry, EntryState::kDamaged, std::string(manifest.message()));
  } else if (sealed != nullptr && sealed->manifest_crc != kAnyManifestCrc &&
             sealed->manifest_crc != entry.manifest->manifest_crc) {
    SetState(entry, EntryState::kDamaged,
             absl::StrFormat("its manifest has crc32c %08x, owner i%04d sealed "
                             "one with %08x",
                             entry.manifest->manifest_crc, sealer,
                             sealed->manifest_crc));
  } else {
    SetState(entry, EntryState::kCommitted, "");
  }
}

// The state of something that is neither on the line nor superseded.
void JudgeOther(CatalogEntry& entry, const absl::Status& manifest,
                const std::optional<OwnerSeal>& seal) {
  const uint32_t owner = entry.id.incarnation;
  if (absl::IsNotFound(manifest)) {
    SetState(entry, EntryState::kAttempt,
             "no manifest: its save has not finished");
  } else if (absl::IsFailedPrecondition(manifest)) {
    SetState(entry, EntryState::kNewer, std::string(manifest.message()));
  } else if (!manifest.ok()) {
    SetState(entry, EntryState::kDamaged, std::string(manifest.message()));
  } else if (!seal) {
    SetState(entry, EntryState::kLate, "no owner has sealed this run");
  } else if (owner > seal->incarnation) {
    SetState(entry, EntryState::kLate,
             absl::StrFormat("%s, its owner's, is not there", SealName(owner)));
  } else {
    SetState(entry, EntryState::kLate,
             absl::StrFormat("owner i%04d, which had taken the run, did not "
                             "count on it",
                             seal->incarnation));
  }
}

void NoteLostSeal(Catalog& catalog) {
  if (!catalog.seal) return;  // NoteProof
  for (const CatalogEntry& entry : catalog.entries) {
    if (entry.id.incarnation <= catalog.seal->incarnation ||
        entry.state == EntryState::kAttempt) {
      continue;
    }
    catalog.seal_lost = absl::StrFormat(
        "%s was committed by owner i%04d, and %s, which was put before, is not "
        "there; the newest seal is %s",
        entry.dir, entry.id.incarnation, SealName(entry.id.incarnation),
        SealName(catalog.seal->incarnation));
    return;
  }
}

void NoteProof(Catalog& catalog) {
  const auto prove = [&catalog](std::string proof) {
    catalog.has_committed = true;
    if (catalog.committed_proof.empty()) {
      catalog.committed_proof = std::move(proof);
    }
  };
  if (!catalog.seal) {
    // Nobody commits before he has sealed.
    for (const CatalogEntry& entry : catalog.entries) {
      if (entry.state == EntryState::kAttempt) continue;
      prove(absl::StrFormat("%s is there, though no owner has sealed the run",
                            entry.dir));
    }
    return;
  }
  const std::string seal = SealName(catalog.seal->incarnation);
  if (catalog.seal->head) {
    prove(absl::StrFormat("%s starts from %s", seal,
                          ToString(*catalog.seal->head)));
  }
  if (!catalog.seal->superseded.empty()) {
    prove(absl::StrFormat(
        "%s lists %s as superseded", seal,
        ToString(catalog.seal->superseded.back().checkpoint.id)));
  }
  if (!catalog.line_all.empty()) {
    prove(absl::StrFormat("%s is there",
                          catalog.entries[catalog.line_all.back()].dir));
  }
  if (!catalog.has_checkpoints_dir) {
    prove(absl::StrFormat(
        "%s was put when %s was there, and it is not (is a file system not "
        "mounted?)",
        seal, kCheckpointsRunIdName));
  }
}

}  // namespace

std::string_view NameOf(EntryState state) {
  switch (state) {
    case EntryState::kCommitted:
      return "committed";
    case EntryState::kSuperseded:
      return "superseded";
    case EntryState::kLate:
      return "late";
    case EntryState::kAttempt:
      return "attempt";
    case EntryState::kDamaged:
      return "damaged";
    case EntryState::kNewer:
      return "newer";
  }
  return "?";
}

ManifestSummary Summarize(const Manifest& manifest,
                          std::span<const std::byte> encoded) {
  ManifestSummary summary;
  summary.commit_number = manifest.commit_number;
  summary.parent = manifest.parent;
  summary.time_unix_ms = manifest.time_unix_ms;
  summary.world = manifest.world;
  summary.layout = manifest.layout;
  for (const ShardFile& file : manifest.files) summary.bytes += file.bytes;
  summary.files = manifest.files.size();
  summary.items = manifest.items.size();
  // Over all but itself: with itself it would be the same for every manifest.
  summary.manifest_crc =
      Crc32c(encoded.first(encoded.size() - sizeof summary.manifest_crc));
  summary.manifest_bytes = encoded.size();
  return summary;
}

const CatalogEntry* Catalog::Find(const CheckpointId& id) const {
  for (const CatalogEntry& entry : entries) {
    if (entry.id == id) return &entry;
  }
  return nullptr;
}

Catalog ClassifyRun(RunListing listing) {
  Catalog catalog;
  catalog.run_id = listing.run_id;
  catalog.claims = std::move(listing.claims);
  if (!catalog.claims.empty()) catalog.newest_claim = catalog.claims.back();
  catalog.seal = std::move(listing.seal);
  catalog.has_checkpoints_dir = listing.has_checkpoints_dir;
  const uint32_t sealer = catalog.seal ? catalog.seal->incarnation : 0;

  std::map<CheckpointId, const RunListing::Dir*> by_id;
  std::vector<CatalogEntry> rest;
  for (const RunListing::Dir& dir : listing.dirs) {
    const auto [place, is_new] = by_id.emplace(dir.parsed.id, &dir);
    if (is_new) continue;
    const RunListing::Dir* other = &dir;
    if (Better(dir, *place->second)) std::swap(place->second, other);
    rest.push_back(EntryOf(*other));
    SetState(rest.back(), EntryState::kAttempt,
             absl::StrFormat("%s stands for this id", place->second->name));
  }

  // The line, oldest first.
  std::vector<CatalogEntry> line;
  const auto take_on_line = [&](const CheckpointId& id,
                                const SealedCheckpoint* sealed) {
    const auto found = by_id.find(id);
    if (found == by_id.end()) return;
    line.push_back(EntryOf(*found->second));
    JudgeOnLine(line.back(), found->second->manifest.status(), sealed, sealer);
    by_id.erase(found);
  };
  if (catalog.seal) {
    for (const SealedCheckpoint& sealed : catalog.seal->line) {
      take_on_line(sealed.id, &sealed);
    }
    // Attempts are counted upwards and only one is in flight, so a damaged
    // manifest's place among the commits is that of its attempt.
    std::vector<std::pair<uint32_t, CheckpointId>> own;
    for (const auto& [id, dir] : by_id) {
      if (id.incarnation == sealer &&
          !absl::IsNotFound(dir->manifest.status())) {
        own.emplace_back(id.attempt, id);
      }
    }
    std::sort(own.begin(), own.end());
    for (const auto& [attempt, id] : own) take_on_line(id, nullptr);
    for (const SupersededCheckpoint& superseded : catalog.seal->superseded) {
      const auto found = by_id.find(superseded.checkpoint.id);
      if (found == by_id.end()) continue;
      rest.push_back(EntryOf(*found->second));
      JudgeOther(rest.back(), found->second->manifest.status(), catalog.seal);
      if (rest.back().state == EntryState::kLate) {
        SetState(rest.back(), EntryState::kSuperseded, superseded.reason);
      }
      by_id.erase(found);
    }
  }
  for (const auto& [id, dir] : by_id) {
    rest.push_back(EntryOf(*dir));
    JudgeOther(rest.back(), dir->manifest.status(), catalog.seal);
  }
  std::sort(
      rest.begin(), rest.end(),
      [](const CatalogEntry& a, const CatalogEntry& b) { return a.id > b.id; });

  const size_t line_size = line.size();
  std::reverse(line.begin(), line.end());
  catalog.entries = std::move(line);
  for (CatalogEntry& entry : rest) catalog.entries.push_back(std::move(entry));
  for (size_t i = line_size; i-- > 0;) {
    const EntryState state = catalog.entries[i].state;
    // A line member without a manifest is on its way out, or an attempt.
    if (state == EntryState::kAttempt) continue;
    catalog.line_all.push_back(i);
    if (state == EntryState::kCommitted) catalog.line.push_back(i);
  }
  NoteLostSeal(catalog);
  NoteProof(catalog);
  return catalog;
}

absl::StatusOr<size_t> FindOnLine(const Catalog& catalog, int64_t step_max) {
  for (size_t i = catalog.line.size(); i-- > 0;) {
    if (catalog.entries[catalog.line[i]].id.step <= step_max) {
      return catalog.line[i];
    }
  }
  std::string there;
  for (const size_t i : catalog.line) {
    absl::StrAppendFormat(&there, "%s%d", there.empty() ? "" : ", ",
                          catalog.entries[i].id.step);
  }
  return absl::NotFoundError(
      absl::StrFormat("no checkpoint at or below step %d; the run has: %s",
                      step_max, there.empty() ? "none" : there));
}

}  // namespace holdfast::ckpt

// ckpt/session/owner_choice.cc: the rules of a start.

#include "ckpt/session/owner_choice.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"

namespace holdfast::ckpt {
namespace {

SealedCheckpoint SealedOf(const CatalogEntry& entry) {
  SealedCheckpoint sealed;
  sealed.id = entry.id;
  if (entry.manifest) {
    sealed.commit_number = entry.manifest->commit_number;
    sealed.manifest_crc = entry.manifest->manifest_crc;
  }
  return sealed;
}

// Nothing on the line can be used. Is a fresh start in order?
absl::Status MayStartFresh(const Catalog& catalog, const OwnerOptions& options,
                           const FoundDamaged& damaged) {
  if (catalog.is_half_converted) {
    return absl::NotFoundError(absl::StrFormat(
        "this run is half the result of a conversion (%s is there); nothing "
        "was changed; give the command that makes it (ckpt-reshard, ckptctl "
        "import) once more, it goes on; or name another run",
        kConversionRecordName));
  }
  std::string proof = options.committed_proof;
  if (proof.empty()) proof = catalog.committed_proof;
  if (!damaged.empty()) {
    proof =
        absl::StrFormat("%s is damaged (%s)", ToString(damaged.rbegin()->first),
                        damaged.rbegin()->second);
  }
  if (!proof.empty()) {
    return absl::NotFoundError(absl::StrFormat(
        "this run has saved checkpoints before and none of them can be used: "
        "%s; nothing was changed; bring them back, or start over with "
        "--resume=never",
        proof));
  }
  if (options.resume == ResumeMode::kRequired) {
    return absl::NotFoundError(
        "--resume=required, and this run has no checkpoint");
  }
  return absl::OkStatus();
}

std::string WhySuperseded(const CatalogEntry& entry,
                          const OwnerOptions& options, uint32_t incarnation) {
  switch (entry.state) {
    case EntryState::kCommitted:
      if (options.resume == ResumeMode::kNever) {
        return absl::StrFormat("owner i%04d started fresh (--resume=never)",
                               incarnation);
      }
      return absl::StrFormat("rewind: owner i%04d went back behind it",
                             incarnation);
    case EntryState::kSuperseded:
      return entry.reason;
    case EntryState::kLate:
      return "late: " + entry.reason;
    case EntryState::kDamaged:
      return "damaged: " + entry.reason;
    case EntryState::kNewer:
      return "needs a newer program: " + entry.reason;
    case EntryState::kAttempt:
      break;
  }
  return entry.reason;
}

}  // namespace

absl::StatusOr<std::optional<size_t>> ChooseCheckpoint(
    const Catalog& catalog, const OwnerOptions& options,
    const FoundDamaged& damaged) {
  if (options.resume == ResumeMode::kNever) return std::optional<size_t>();
  if (!catalog.seal_lost.empty() && options.resume != ResumeMode::kStep) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "choosing a checkpoint: %s; nothing was changed; bring the seal back, "
        "or go back to a step of the line that is left with --resume=STEP",
        catalog.seal_lost));
  }
  const int64_t step_max =
      options.resume == ResumeMode::kStep ? options.resume_step : INT64_MAX;
  // Backwards along what is there of the line.
  size_t position = catalog.line.size();
  for (size_t i = catalog.line_all.size(); i-- > 0;) {
    const size_t index = catalog.line_all[i];
    const CatalogEntry& entry = catalog.entries[index];
    const bool is_whole = position > 0 && catalog.line[position - 1] == index;
    if (is_whole) --position;
    if (entry.id.step > step_max) continue;
    if (entry.state == EntryState::kNewer) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "the run's newest checkpoint, %s, cannot be read by this program: "
          "%s; nothing was changed; use the program that wrote it, or go back "
          "behind it with --resume=STEP",
          entry.dir, entry.reason));
    }
    if (is_whole && !damaged.contains(entry.id)) {
      return std::optional<size_t>(position);
    }
  }
  if (options.resume == ResumeMode::kStep && damaged.empty()) {
    return FindOnLine(catalog, step_max).status();
  }
  const absl::Status fresh = MayStartFresh(catalog, options, damaged);
  if (!fresh.ok()) return fresh;
  return std::optional<size_t>();
}

OwnerSeal MakeSeal(const Catalog& catalog, std::optional<size_t> position,
                   const OwnerOptions& options, const FoundDamaged& damaged,
                   const RunId& run_id, uint32_t incarnation) {
  OwnerSeal seal;
  seal.run_id = run_id;
  seal.incarnation = incarnation;
  std::set<size_t> on_line;
  if (position) {
    for (size_t i = 0; i <= *position; ++i) {
      const size_t index = catalog.line[i];
      const CatalogEntry& entry = catalog.entries[index];
      if (damaged.contains(entry.id)) continue;
      seal.line.push_back(SealedOf(entry));
      on_line.insert(index);
    }
    seal.head = seal.line.back().id;
  }
  for (size_t i = catalog.entries.size(); i-- > 0;) {
    const CatalogEntry& entry = catalog.entries[i];
    if (on_line.contains(i) || entry.state == EntryState::kAttempt) continue;
    const auto found = damaged.find(entry.id);
    seal.superseded.push_back(
        {SealedOf(entry), found != damaged.end()
                              ? "damaged: " + found->second
                              : WhySuperseded(entry, options, incarnation)});
  }
  return seal;
}

std::vector<SupersededCheckpoint> SteppedOver(const Catalog& catalog,
                                              const OwnerSeal& seal) {
  std::set<CheckpointId> before;
  for (const size_t index : catalog.line_all) {
    before.insert(catalog.entries[index].id);
  }
  std::vector<SupersededCheckpoint> over;
  for (const SupersededCheckpoint& superseded : seal.superseded) {
    if (before.contains(superseded.checkpoint.id)) over.push_back(superseded);
  }
  return over;
}

void IgnoreSeal(Catalog& catalog) {
  catalog.line.clear();
  for (size_t i = 0; i < catalog.entries.size(); ++i) {
    if (!catalog.entries[i].manifest) continue;
    catalog.entries[i].state = EntryState::kCommitted;
    catalog.line.push_back(i);
  }
  std::sort(catalog.line.begin(), catalog.line.end(),
            [&catalog](size_t a, size_t b) {
              const auto key = [&catalog](size_t i) {
                const CheckpointId& id = catalog.entries[i].id;
                return std::tuple(id.incarnation, id.attempt);
              };
              return key(a) < key(b);
            });
  catalog.line_all = catalog.line;
}

}  // namespace holdfast::ckpt

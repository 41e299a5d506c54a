// ckpt/session/catalog.h: which checkpoints a run has, and which of them count.
//
// Only rank 0 and the tools read a catalog; the other ranks are told. The rules
// are those of run_files.h, and step numbers play no part in them:
//
//   1 the newest owner with a seal is the sealing owner
//   2 the line = the checkpoints of its seal, oldest first, then its own
//     commits by attempt, which is the order of their commits
//   3 a checkpoint on the line is offered when its manifest is there, whole,
//     and the one that the seal recorded
//   4 everything else in checkpoints/ is listed with the reason why it is not
//
// ClassifyRun is pure and holds the rules; ReadCatalog gathers what it needs.
// Memory: one decoded manifest at a time.

#ifndef HOLDFAST_CKPT_SESSION_CATALOG_H_
#define HOLDFAST_CKPT_SESSION_CATALOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/types.h"
#include "ckpt/format/manifest.h"
#include "ckpt/session/io.h"
#include "ckpt/session/run_files.h"
#include "ckpt/session/task.h"

namespace holdfast::ckpt {

enum class EntryState {
  kCommitted,   // on the line: counts
  kSuperseded,  // whole, stepped over: `reason` says why; never offered
  kLate,        // whole, committed by an owner that had lost the run
  kAttempt,     // no manifest: not a checkpoint, never offered
  kDamaged,     // its manifest is damaged or is not the one that was sealed
  kNewer,       // its manifest needs a newer reader
};
std::string_view NameOf(EntryState state);

// What a manifest says about itself, without its tables.
struct ManifestSummary {
  uint64_t commit_number = 0;
  std::optional<CheckpointId> parent;
  int64_t time_unix_ms = 0;
  uint32_t world = 0;
  std::string layout;
  uint64_t bytes = 0;  // of all shard files
  size_t files = 0;
  size_t items = 0;
  uint32_t manifest_crc = 0;
  uint64_t manifest_bytes = 0;
};
ManifestSummary Summarize(const Manifest& manifest,
                          std::span<const std::byte> encoded);

struct CatalogEntry {
  CheckpointId id;
  std::string dir;  // "checkpoints/step-000000120.i0003.a01.o0004"
  std::optional<uint32_t> owner;  // of the directory's name
  EntryState state = EntryState::kAttempt;
  std::string reason;  // for every state but kCommitted
  std::optional<ManifestSummary> manifest;
};

struct Catalog {
  std::optional<RunId> run_id;       // none: no run here yet
  std::vector<uint32_t> claims;      // incarnations, ascending
  uint32_t newest_claim = 0;         // 0: none
  std::optional<OwnerSeal> seal;     // the newest
  bool has_checkpoints_dir = false;  // and it is this run's (its run.id)

  // Everything in checkpoints/ that is ours, newest first: the line backwards,
  // then the rest by id backwards.
  std::vector<CatalogEntry> entries;
  // Indexes into `entries`, oldest first: all that is there of the line, and
  // the whole ones of these.
  std::vector<size_t> line_all;
  std::vector<size_t> line;

  // Not "": a seal is gone, and with it the line. Nobody commits before he has
  // sealed, so a checkpoint of an owner newer than the newest seal proves it.
  std::string seal_lost;

  // Something has been committed in this run's life, as far as owners/ and
  // checkpoints/ know; `committed_proof` says how it is known.
  bool has_committed = false;
  std::string committed_proof;

  // What is there is half the result of a conversion, which goes on when its
  // command is given again.
  bool is_half_converted = false;

  const CatalogEntry* newest() const {
    return line.empty() ? nullptr : &entries[line.back()];
  }
  const CatalogEntry* Find(const CheckpointId& id) const;
};

// What was found, before any rule.
struct RunListing {
  std::optional<RunId> run_id;
  std::vector<uint32_t> claims;
  std::optional<OwnerSeal> seal;  // the newest
  bool has_checkpoints_dir = false;
  struct Dir {
    std::string name;  // one path part
    ParsedDir parsed;
    // Of the directory's manifest: kNotFound when there is none.
    absl::StatusOr<ManifestSummary> manifest = absl::NotFoundError("");
  };
  std::vector<Dir> dirs;
};
Catalog ClassifyRun(RunListing listing);

// What `--resume=STEP` means: the newest whole one on the line at or below that
// step, as an index into `entries`. kNotFound says what there is.
absl::StatusOr<size_t> FindOnLine(const Catalog& catalog, int64_t step_max);

// A run directory that does not exist, or is empty, is an empty catalog.
//
// kDataLoss: run.id or the newest seal is damaged. kFailedPrecondition:
// checkpoints/ belongs to another run. kUnavailable: the storage says so, or
// checkpoints/ kept changing. kPermissionDenied: as the storage says.
Task<absl::StatusOr<Catalog>> ReadCatalog(Io* io);

// Reads DIR/MANIFEST. kNotFound: there is none. kDataLoss, kFailedPrecondition:
// see DecodeManifest; also kDataLoss: the device gives the files beside it and
// not the manifest, or a directory of shards is a symbolic link. `encoded`, if
// wanted, gets the bytes.
Task<absl::StatusOr<std::unique_ptr<Manifest>>> ReadManifest(
    Io* io, std::string dir, std::vector<std::byte>* encoded);

// ReadManifest as a session, for tools and tests.
class ManifestSession final : public Session {
 public:
  ManifestSession(const SessionEnv& env, std::string dir);
  void OnCompletion(const Completion& completion) override;
  bool OnMessage(const Message& message) override;
  void Poll() override;
  bool done() const override;
  absl::StatusOr<std::unique_ptr<Manifest>>& result() { return result_; }
  const std::vector<std::byte>& encoded() const { return encoded_; }

 private:
  Task<bool> Run();
  Io io_;
  const std::string dir_;
  std::vector<std::byte> encoded_;
  absl::StatusOr<std::unique_ptr<Manifest>> result_ =
      absl::UnknownError("not read yet");
  Fiber fiber_;
};

// The incarnation of the newest claim, 0 for none. An owner that finds a newer
// one than its own has lost the run: it commits, deletes and renames nothing
// more.
Task<absl::StatusOr<uint32_t>> NewestClaim(Io* io);

// ReadCatalog as a session, for tools and tests.
class CatalogSession final : public Session {
 public:
  explicit CatalogSession(const SessionEnv& env);
  void OnCompletion(const Completion& completion) override;
  bool OnMessage(const Message& message) override;
  void Poll() override;
  bool done() const override;
  const absl::StatusOr<Catalog>& result() const { return result_; }

 private:
  Task<bool> Run();
  Io io_;
  Fiber fiber_;
  absl::StatusOr<Catalog> result_ = absl::UnknownError("not read yet");
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_CATALOG_H_

// ckpt/session/load_session.h: one rank reads its part of one checkpoint into
// place.
//
//   plan      boxes in the manifest x wanted boxes (ckpt/plan/load_plan.h)
//   files     header, footer and index of each file that has wanted bytes:
//             identity, size, crc_index of the manifest
//   read      whole units, neighbours coalesced, in file order, a bounded queue
//   verify    the checksum of every unit read
//   scatter   straight into the target; every wanted byte once. Large units
//             that land in one piece are read to their place and not copied;
//             a device's regions are filled by its copies, beside the next
//             reads (load_staging.h)
//
// A rank of a job that shares (Share) reads its part of what the whole job
// wants, sends the others what they want of it and waits for what it gets
// (exchange.h).
//
// Nobody is asked and nothing is decided here: the session ends with an outcome
// that the ranks then agree on (owner_session.h). Tools use it alone, on a
// directory anywhere.
//
// Memory: `read_bytes_max` x `reads_in_flight` for reads, the plan, the index
// of one file at a time. Never a second copy of the state. When a load fails
// the target holds parts of it, damaged ones included.
// Thread: the storage's owner. Checksums and copies run inside Poll.

#ifndef HOLDFAST_CKPT_SESSION_LOAD_SESSION_H_
#define HOLDFAST_CKPT_SESSION_LOAD_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/format/manifest.h"
#include "ckpt/layout/holding.h"
#include "ckpt/session/exchange.h"
#include "ckpt/session/load_staging.h"
#include "ckpt/session/session.h"
#include "ckpt/session/unit_reader.h"

namespace holdfast::ckpt {

// Where loaded bytes go: the rank's regions, as its holding numbers them, in
// memory that the processor can reach, or in a device, by way of `staging`
// (which outlives this).
class LoadTarget {
 public:
  explicit LoadTarget(std::vector<std::span<std::byte>> regions,
                      LoadStaging* staging = nullptr)
      : regions_(std::move(regions)), staging_(staging) {}
  std::span<const std::span<std::byte>> regions() const { return regions_; }
  LoadStaging* staging() const { return staging_; }

 private:
  std::vector<std::span<std::byte>> regions_;
  LoadStaging* staging_;
};

// How the job's items must meet the manifest's.
enum class ItemMatch {
  kExact,   // the same set: nothing is dropped, nothing is missing
  kSubset,  // every item of the job is in the manifest; it may have more
};
// kFailedPrecondition names the first difference and both sides.
absl::Status MatchItems(const Manifest& manifest,
                        const std::vector<ItemSpec>& items, ItemMatch match);

struct LoadOutcome {
  // OK; kDataLoss (damage: `damage` says where); kFailedPrecondition (the plan
  // refuses); kUnavailable and others as the storage says.
  absl::Status status;
  std::optional<UnitDamage> damage;
  uint64_t bytes_wanted = 0;
  uint64_t bytes_read = 0;    // from files, blocks around the data included
  uint64_t bytes_placed = 0;  // of these, read straight into the target
  // By messages, from the ranks that read them; and to others.
  uint64_t bytes_received = 0;
  uint64_t bytes_sent = 0;
  double seconds = 0;
};

struct LoadProgress {
  uint64_t bytes_done = 0;   // of the units to be read
  uint64_t bytes_total = 0;  // 0: not planned yet
};

// How a rank of a job shares what it reads with the others.
struct LoadSharing {
  Exchange* exchange = nullptr;
  ShareOptions plan;
  int world = 1;
  Rank self{};
  // What each rank wants, in terms of the loader's items.
  std::function<Holding(Rank)> wanted_by;
};

// The loading itself, as a Task on a caller's Io. All pointers outlive it.
class Loader {
 public:
  // `dir` is the checkpoint's directory, "." for the storage's root. `wanted`
  // speaks of `items`.
  Loader(Io* io, std::string dir, const Manifest* manifest,
         const std::vector<ItemSpec>* items, const Holding* wanted,
         const LoadTarget* target, const UnitReaderOptions& options);
  ~Loader();

  // Before Run: read each byte once in the whole job. All ranks of the job do,
  // or none. The caller feeds and polls the exchange, and calls Cancel when its
  // status is no longer OK.
  void Share(LoadSharing sharing);

  // Once. Returns outcome().status; then no read is in flight.
  Task<absl::Status> Run();
  // Ends Run soon, with kAborted.
  void Cancel();

  LoadProgress progress() const;
  const LoadOutcome& outcome() const;

 private:
  Task<absl::Status> Load();
  Task<absl::Status> LoadAlone();
  Task<absl::Status> LoadShared();
  struct State;
  std::unique_ptr<State> state_;
};

class LoadSession final : public Session {
 public:
  LoadSession(const SessionEnv& env, std::string dir, const Manifest* manifest,
              const std::vector<ItemSpec>* items, const Holding* wanted,
              const LoadTarget* target, const UnitReaderOptions& options = {});

  void OnCompletion(const Completion& completion) override;
  bool OnMessage(const Message& message) override;  // takes none
  void Poll() override;
  bool done() const override;

  LoadProgress progress() const { return loader_.progress(); }
  const LoadOutcome& outcome() const { return loader_.outcome(); }

 private:
  Task<bool> Run();
  Io io_;
  Loader loader_;
  Fiber fiber_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_LOAD_SESSION_H_

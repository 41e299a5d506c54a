// ckpt/session/preflight.h: what a start tries before it takes the run: is this
// one directory for all ranks, can every host write where shards will go, does
// a save fit?
//
//   rank 0                                     every other rank
//   put DIR/preflight.NONCE
//   preflight (name, contents)           ->    read it, with patience
//   the first rank of each host: create, write, sync, remove a block in DIR
//   free space against the plans         <-    report
//   remove the file
//
// DIR is checkpoints/, which may be another file system than the run, or the
// run where there is none yet. Nothing else is touched, and nobody lists. A job
// that dies in these moments leaves files of 4 KiB behind that nothing reads.
//
// Thread: the storage's owner. Cost: two messages and one small read a rank,
// five small calls a host.

#ifndef HOLDFAST_CKPT_SESSION_PREFLIGHT_H_
#define HOLDFAST_CKPT_SESSION_PREFLIGHT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/group/group.h"
#include "ckpt/session/io.h"
#include "ckpt/session/task.h"

namespace holdfast::ckpt {

// How long a name that another client has made may stay invisible: longer than
// network file systems cache a directory by default (30 s on NFS).
inline constexpr int kSeeTries = 100;
inline constexpr absl::Duration kSeeWait = absl::Milliseconds(350);

// kPhasePreflight, 0 -> all.
struct PreflightMessage {
  std::string dir;
  std::string name;   // of the file, in `dir`
  std::string nonce;  // its contents
};

// kPhasePreflightReport, rank -> 0.
struct PreflightReport {
  absl::Status status;
  bool direct_io = false;  // this rank's storage writes with O_DIRECT
};

std::vector<std::byte> Encode(const PreflightMessage& message);
std::vector<std::byte> Encode(const PreflightReport& message);
absl::StatusOr<PreflightMessage> DecodePreflight(
    std::span<const std::byte> body);
absl::StatusOr<PreflightReport> DecodePreflightReport(
    std::span<const std::byte> body);

// "checkpoints/preflight.0123456789abcdef.r00003"
std::string ProbeName(const PreflightMessage& message, Rank rank);

// No rank before this one is on its host.
bool IsFirstOfHost(const Group& group);

// Reads the file that rank 0 wrote. kFailedPrecondition: it is not here, or
// another one is.
Task<absl::Status> SeeNonce(Io* io, const PreflightMessage* message);

// Creates `name`, writes and syncs one block, removes it.
Task<absl::Status> ProbeWrite(Io* io, std::string name);

// A rank's whole part; `message` outlives it.
Task<absl::Status> LookBefore(Io* io, const Group* group,
                              const PreflightMessage* message);

// Is there room for saves of `save_bytes`? Pure. kResourceExhausted: not for
// one. `*warning` is set when there is less than keep_last checkpoints and the
// one in the making need, `there` of which exist.
absl::Status CheckSpace(uint64_t bytes_free, uint64_t save_bytes,
                        int64_t keep_last, int64_t there, std::string* warning);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_PREFLIGHT_H_

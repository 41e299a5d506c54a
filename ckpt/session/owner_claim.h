// ckpt/session/owner_claim.h: what rank 0 does to a run directory at a start,
// one step at a time. Every step may be the last.

#ifndef HOLDFAST_CKPT_SESSION_OWNER_CLAIM_H_
#define HOLDFAST_CKPT_SESSION_OWNER_CLAIM_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/types.h"
#include "ckpt/session/catalog.h"
#include "ckpt/session/io.h"
#include "ckpt/session/run_files.h"
#include "ckpt/session/task.h"

namespace holdfast::ckpt {

// Makes what is missing of run.id, owners/ and checkpoints/, durably, and
// returns the run's identity. `id_if_new` is the one of a run that has none,
// neither in run.id nor in checkpoints/run.id. kFailedPrecondition, and nothing
// is changed: checkpoints/ is another run's.
Task<absl::StatusOr<RunId>> PrepareRun(Io* io, RunId id_if_new);

// Puts the next free claim; of several jobs each gets a number of its own, and
// the highest is the owner. Higher than any number in checkpoints/ as well,
// should claims have been lost. `claim` comes with everything but its number.
Task<absl::StatusOr<uint32_t>> ClaimNext(Io* io, OwnerClaim claim);

// Moves the whole checkpoints of the line into names of `incarnation`, and
// makes that durable; `catalog` follows. `*stale`: something was no longer
// where the catalog said; read it again. Where the storage cannot rename,
// nothing is done: the seal alone decides.
//
// kFailedPrecondition: a newer owner has been here.
Task<absl::Status> AdoptLine(Io* io, Catalog* catalog, uint32_t incarnation,
                             bool* stale);

// kFailedPrecondition: the run belongs to a newer owner.
Task<absl::Status> CheckOwner(Io* io, uint32_t incarnation);

// Before it CheckOwner. kUnavailable when it is not certain that the seal is
// there for good: start again.
Task<absl::Status> PutSeal(Io* io, const OwnerSeal* seal);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_OWNER_CLAIM_H_

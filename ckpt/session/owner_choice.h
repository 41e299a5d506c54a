// ckpt/session/owner_choice.h: which checkpoint a start takes, and what its
// seal then says. Pure.

#ifndef HOLDFAST_CKPT_SESSION_OWNER_CHOICE_H_
#define HOLDFAST_CKPT_SESSION_OWNER_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "ckpt/base/types.h"
#include "ckpt/session/catalog.h"
#include "ckpt/session/owner_session.h"
#include "ckpt/session/run_files.h"

namespace holdfast::ckpt {

// Checkpoints that this start has found damaged, and how.
using FoundDamaged = std::map<CheckpointId, std::string>;

// A position in `catalog.line`, or nothing: start fresh.
//
// kNotFound: none is left and a fresh start is not allowed; says why.
// kFailedPrecondition: the newest one needs a newer program.
absl::StatusOr<std::optional<size_t>> ChooseCheckpoint(
    const Catalog& catalog, const OwnerOptions& options,
    const FoundDamaged& damaged);

// The seal of an owner that starts from line[position]. What is in the catalog
// and not on the new line is superseded, with a reason.
OwnerSeal MakeSeal(const Catalog& catalog, std::optional<size_t> position,
                   const OwnerOptions& options, const FoundDamaged& damaged,
                   const RunId& run_id, uint32_t incarnation);

// Those that this start steps over: superseded in `seal` and on the line of
// `catalog` before.
std::vector<SupersededCheckpoint> SteppedOver(const Catalog& catalog,
                                              const OwnerSeal& seal);

// The canary's rule: the last manifest by (incarnation, attempt), seal or no
// seal. For tests only, see OwnerOptions.
void IgnoreSeal(Catalog& catalog);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_OWNER_CHOICE_H_

// tools/convert/outside.h: what is made from a checkpoint lies outside it.

#ifndef HOLDFAST_TOOLS_CONVERT_OUTSIDE_H_
#define HOLDFAST_TOOLS_CONVERT_OUTSIDE_H_

#include <string>

#include "absl/status/status.h"
#include "ckpt/convert/checkpoint_source.h"

namespace holdfast::tools {

// kFailedPrecondition: `out` is inside the checkpoint or the run that is read,
// which a result there would change.
absl::Status CheckOutsideOf(const ckpt::CheckpointSource& source,
                            const std::string& out);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_OUTSIDE_H_

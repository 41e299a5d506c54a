// ckpt/convert/plain_layouts.h: layouts for states that come from elsewhere.
// Pure.

#ifndef HOLDFAST_CKPT_CONVERT_PLAIN_LAYOUTS_H_
#define HOLDFAST_CKPT_CONVERT_PLAIN_LAYOUTS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/layout/holding.h"

namespace holdfast::ckpt {

// The items laid end to end and cut into `parts` runs of equal bytes, to a
// block of 4,096: rank p of `parts` stores and wants run p. "rows4". `items`
// are sorted by (name, kind).
std::unique_ptr<JobLayout> MakeRowLayout(std::vector<ItemSpec> items,
                                         int parts);

// `base`, of the items in `items` alone: a training job's layout for a state
// that has weights and nothing else. kInvalidArgument: `base` does not have
// such an item.
absl::StatusOr<std::unique_ptr<JobLayout>> MakeSubsetLayout(
    std::unique_ptr<JobLayout> base, std::vector<ItemSpec> items);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_PLAIN_LAYOUTS_H_

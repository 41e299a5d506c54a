// trainer/links/link_ops.h: what a measurement of links does with one group,
// whatever carries it and in whatever memory.
//
// Thread: the step thread; each member of the group makes the matching calls.
// Memory: a buffer of the largest message, and of the largest all-reduce.

#ifndef HOLDFAST_TRAINER_LINKS_LINK_OPS_H_
#define HOLDFAST_TRAINER_LINKS_LINK_OPS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "trainer/parallel/collectives.h"
#include "trainer/parallel/device_collectives.h"

namespace holdfast::trainer {

class LinkOps {
 public:
  virtual ~LinkOps() = default;

  // Members count from 0. Every call returns when its bytes have gone or come.
  virtual absl::Status Send(int64_t bytes, int to) = 0;
  virtual absl::Status Receive(int64_t bytes, int from) = 0;
  // A sum in the order that training adds in (parallel/collectives.h).
  virtual absl::Status AllReduce(int64_t bytes) = 0;
};

// Over `group` in host memory; no message or sum is larger than `bytes_max`.
// `group` outlives the result.
std::unique_ptr<LinkOps> NewHostLinkOps(Collectives& group, int64_t bytes_max);

// Between the memories of devices: `group` is over memory of `device`. Both
// outlive the result. kResourceExhausted: the device has no room.
absl::StatusOr<std::unique_ptr<LinkOps>> NewDeviceLinkOps(
    DeviceCollectives& group, kernels::Device& device, int64_t bytes_max);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_LINKS_LINK_OPS_H_

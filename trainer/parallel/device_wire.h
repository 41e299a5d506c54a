// trainer/parallel/device_wire.h: messages from device memory to device memory,
// ordered by streams: what wire_collectives.h needs of a transport.
//
//   shared_wire.h   ranks that are threads and share one device
//   nccl_wire.h     NCCL
//
// A transport only moves bytes: every addition is ours.
//
// Thread: the step thread. Pure, so that a plug-in can implement it.

#ifndef HOLDFAST_TRAINER_PARALLEL_DEVICE_WIRE_H_
#define HOLDFAST_TRAINER_PARALLEL_DEVICE_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/stream.h"
#include "trainer/parallel/collectives.h"
#include "trainer/parallel/device_collectives.h"

namespace holdfast::trainer {

class DeviceWire {
 public:
  using Transfer = DeviceCollectives::Transfer;

  // The tag of a group that all ranks begin in the same order.
  static constexpr int kGroup = -1;

  virtual ~DeviceWire() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Begins all transfers at once when what is enqueued on `stream` so far has
  // run; none is of zero bytes. Work enqueued after End finds them over. Each
  // is ended exactly once, error or not, and groups of one tag in the order in
  // which they began. Does not wait for another rank's host to begin too,
  // except the first time of a tag.
  virtual absl::StatusOr<RequestId> Begin(std::span<const Transfer> transfers,
                                          int tag, kernels::Stream& stream) = 0;
  virtual absl::Status End(RequestId request, kernels::Stream& stream) = 0;
  // Instead of End: as DeviceCollectives has it.
  virtual void Abandon(RequestId request, kernels::Stream& stream) = 0;

  // As DeviceCollectives has them.
  virtual absl::Status AllGatherV(std::span<std::byte> all,
                                  std::span<const int64_t> first,
                                  std::span<const int64_t> count,
                                  kernels::Stream& stream) = 0;
  virtual absl::Status Sync(kernels::Stream& stream) = 0;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_DEVICE_WIRE_H_

// trainer/parallel/device_collectives.h: how the ranks of one axis exchange
// what lies in device memory.
//
// Everything here is ordered by a stream. A call takes what the work enqueued
// on its stream so far leaves behind, and work enqueued later finds the result;
// the host must not look before Sync. Where the device works at once (the CPU)
// the result is there when the call returns.
//
// Implementations:
//   hosted_collectives.h   over any Collectives: in place on the CPU, through
//                          pinned memory elsewhere
//   wire_collectives.h     over messages from device to device: shared_wire.h
//                          (ranks that are threads and share one device), or
//                          NCCL (nccl_wire.h)
//
// Floating-point sums have the order of collectives.h: rank 0's value, plus
// rank 1's, and so on, in FP32, on every implementation.
//
// Every rank of the communicator makes the same calls in the same order, on
// streams that may differ. Errors are kept: what a call returns may be an
// earlier one's.
//
// Thread: the step thread. Memory: scratch grows to what the largest calls
// need and stays; a call like an earlier one allocates nothing.

#ifndef HOLDFAST_TRAINER_PARALLEL_DEVICE_COLLECTIVES_H_
#define HOLDFAST_TRAINER_PARALLEL_DEVICE_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/stream.h"
#include "trainer/parallel/collectives.h"

namespace holdfast::trainer {

class DeviceCollectives {
 public:
  // One side of a message of an Exchange. A sender's bytes are not changed.
  // Messages from one rank to another are matched in the order of both lists.
  struct Transfer {
    enum class Kind : uint8_t { kSend, kReceive };
    Kind kind = Kind::kSend;
    std::span<std::byte> data;
    int peer = 0;
  };

  virtual ~DeviceCollectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Every rank ends with the sum, or the maximum, over ranks.
  virtual absl::Status AllReduceSum(std::span<float> values,
                                    kernels::Stream& stream) = 0;
  virtual absl::Status AllReduceMax(std::span<float> values,
                                    kernels::Stream& stream) = 0;

  // As Collectives::AllGatherV. Nobody writes to a rank's own part.
  virtual absl::Status AllGatherV(std::span<std::byte> all,
                                  std::span<const int64_t> first,
                                  std::span<const int64_t> count,
                                  kernels::Stream& stream) = 0;

  // All transfers of the list at once: they cannot wait for one another.
  virtual absl::Status Exchange(std::span<const Transfer> transfers,
                                kernels::Stream& stream) = 0;

  // A message beside the stream's work. It begins when what is enqueued on
  // `stream` so far has run; work enqueued after Wait finds it over: received,
  // or free to be overwritten. Each is waited for, or abandoned, once. Messages
  // with equal (from, to, tag) are begun, and waited for, in one order.
  virtual absl::StatusOr<RequestId> Isend(std::span<const std::byte> data,
                                          int to, int tag,
                                          kernels::Stream& stream) = 0;
  virtual absl::StatusOr<RequestId> Irecv(std::span<std::byte> data, int from,
                                          int tag, kernels::Stream& stream) = 0;
  virtual absl::Status Wait(RequestId request, kernels::Stream& stream) = 0;
  // For a rank that gives up, instead of Wait: the message's memory may go when
  // what is enqueued on `stream` so far has run. As Collectives::Abandon.
  virtual void Abandon(RequestId request, kernels::Stream& stream) = 0;

  // Blocks until all work on `stream` so far is over, and says what went wrong
  // on the device or on the way. Results count after an OK.
  virtual absl::Status Sync(kernels::Stream& stream) = 0;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_DEVICE_COLLECTIVES_H_

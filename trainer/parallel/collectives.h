// trainer/parallel/collectives.h: how the ranks of one axis exchange numbers.
//
// One interface, three homes: Open MPI (processes), in-process threads (tests,
// sanitizers), later NCCL. A Collectives object is one communicator: the ranks
// of one TP group, one PP group, one DP group, or the whole world.
//
// Floating-point sums have one order: rank 0's value, plus rank 1's, plus rank
// 2's and so on, in FP32 (never an order that a library chooses). Integer sums
// are exact. So results depend on the number of ranks, not on timing.
//
// Every rank of the communicator makes the same calls in the same order. Calls
// block, with the watchdog's eye on them: each one publishes its name, and an
// expired step deadline ends the process with rank, host and operation
// (trainer/fault). kAborted: a peer in this process gave up (threads only).
//
// Thread: the step thread.

#ifndef HOLDFAST_TRAINER_PARALLEL_COLLECTIVES_H_
#define HOLDFAST_TRAINER_PARALLEL_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::trainer {

// A send or receive under way. Wait() or Abandon() it exactly once; its memory
// stays alive and, for a send, unchanged until then.
enum class RequestId : uint64_t {};

class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // --- Point to point
  // ---------------------------------------------------------- `tag` >= 0;
  // messages with equal (from, to, tag) arrive in order. The sizes of both
  // sides are equal (kInternal otherwise).
  virtual absl::StatusOr<RequestId> Isend(std::span<const std::byte> data,
                                          int to, int tag) = 0;
  virtual absl::StatusOr<RequestId> Irecv(std::span<std::byte> data, int from,
                                          int tag) = 0;
  virtual absl::Status Wait(RequestId request) = 0;
  // For a rank that gives up and will not wait: nobody touches the request's
  // memory any more. Whether the message arrives is left open, so nothing but
  // the end of the job may follow on this communicator.
  virtual void Abandon(RequestId request) = 0;

  // --- Collective
  // ----------------------------------------------------------------
  virtual absl::Status Barrier() = 0;
  virtual absl::Status Broadcast(std::span<std::byte> data, int root) = 0;

  // Every rank ends with the sum over ranks, in rank order.
  virtual absl::Status AllReduceSum(std::span<float> data) = 0;
  virtual absl::Status AllReduceSum(std::span<int64_t> data) = 0;
  virtual absl::Status AllReduceMax(std::span<float> data) = 0;
  virtual absl::Status AllReduceMax(std::span<int64_t> data) = 0;

  // Rank r contributes all.subspan(first[r], count[r]) in place, in bytes;
  // every rank ends with all parts. Parts do not overlap; counts may be zero.
  virtual absl::Status AllGatherV(std::span<std::byte> all,
                                  std::span<const int64_t> first,
                                  std::span<const int64_t> count) = 0;

  // A communicator of the ranks that pass the same `color`, ordered by `key`,
  // then by rank here. Collective. `name` is for error messages ("tp", "dp").
  virtual absl::StatusOr<std::unique_ptr<Collectives>> Split(
      int color, int key, const std::string& name) = 0;
};

// Typed views of memory as bytes.
template <class T>
std::span<std::byte> Bytes(std::span<T> values) {
  return std::as_writable_bytes(values);
}
template <class T>
std::span<const std::byte> ConstBytes(std::span<const T> values) {
  return std::as_bytes(values);
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_COLLECTIVES_H_

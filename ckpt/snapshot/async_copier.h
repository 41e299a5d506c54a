// ckpt/snapshot/async_copier.h: a device, as far as saves and loads need one.
//
// For state that the host cannot touch, such as a GPU's. The checkpoint layer
// names bytes of the state by region and offset; whoever owns the device copies
// them from and to host memory that both the device and the storage reach
// directly. trainer/device_copier.h is the one of the trainer.
//
// All copies run in the order in which they were begun, those out and those in.
//
// Thread: the step thread and the checkpoint thread, never both at once, but
//     for Passed and status, which any thread may call at any time.

#ifndef HOLDFAST_CKPT_SNAPSHOT_ASYNC_COPIER_H_
#define HOLDFAST_CKPT_SNAPSHOT_ASYNC_COPIER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::ckpt {

class AsyncCopier {
 public:
  virtual ~AsyncCopier() = default;

  // Page-aligned host memory that copies reach at the bus's full speed. It
  // lives as long as the copier. At open only; once.
  virtual absl::StatusOr<std::span<std::byte>> TakeMemory(uint64_t bytes) = 0;

  // The state is what all work that was enqueued so far makes of it: copies
  // begun from now on run behind that work, and behind none that comes later.
  // Never blocks. Step thread.
  virtual void Fix() = 0;

  // Begins a copy of bytes [offset, offset + size) of a region, out of the
  // device or into it, and returns its event. The host's memory is from
  // TakeMemory, and left alone until the event has passed. Never blocks.
  virtual uint64_t CopyOut(uint32_t region, uint64_t offset,
                           std::span<std::byte> to) = 0;
  virtual uint64_t CopyIn(uint32_t region, uint64_t offset,
                          std::span<const std::byte> from) = 0;

  // The copy is complete and visible to every thread of the host, or the device
  // has failed: status() says which, when it is asked afterwards. Never blocks.
  virtual bool Passed(uint64_t event) = 0;
  // Returns when Passed is true.
  virtual void Await(uint64_t event) = 0;

  // OK, or the first error of the device, which stays.
  virtual absl::Status status() = 0;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SNAPSHOT_ASYNC_COPIER_H_

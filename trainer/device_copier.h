// trainer/device_copier.h: the state's way between a device and the checkpoint
// layer: ckpt's AsyncCopier over kernels::Device.
//
// Copies go over a stream of their own, beside the step's, from and to pinned
// memory that the storage registers too. The step's stream is never told to
// wait: the host asks whether a copy has passed (ckpt/snapshot/snapshot.h),
// because it then knows how long it has waited, and can give the save up.
//
//   step's stream   step n | forward, backward of n+1 .......... | AdamW
//                         event                                  ^ the host
//                         asks
//   copies                  \==unit==unit==unit==unit==
//
// Thread: as async_copier.h says.

#ifndef HOLDFAST_TRAINER_DEVICE_COPIER_H_
#define HOLDFAST_TRAINER_DEVICE_COPIER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/checkpointer.h"
#include "kernels/device.h"

namespace holdfast::trainer {

class DeviceCopier final : public ckpt::AsyncCopier {
 public:
  // A wait that is left out; tests must notice each.
  enum class Canary {
    kNone,
    kNoStateEvent,  // copies do not wait for the step whose state they take
    kNoCopyEvent,   // nobody waits for copies
  };

  // `regions` are the device's, by number. `state_event`: a point of the step's
  // work behind all that stores into the state so far (StepRunner). Both
  // outlive this.
  DeviceCopier(kernels::Device& device,
               std::span<const kernels::Buffer> regions,
               std::function<kernels::Event()> state_event,
               Canary canary = Canary::kNone);
  ~DeviceCopier() override;

  absl::StatusOr<std::span<std::byte>> TakeMemory(uint64_t bytes) override;
  void Fix() override;
  uint64_t CopyOut(uint32_t region, uint64_t offset,
                   std::span<std::byte> to) override;
  uint64_t CopyIn(uint32_t region, uint64_t offset,
                  std::span<const std::byte> from) override;
  bool Passed(uint64_t event) override;
  void Await(uint64_t event) override;
  absl::Status status() override { return device_.status(); }

 private:
  kernels::Device& device_;
  const std::vector<kernels::Buffer> regions_;
  const std::function<kernels::Event()> state_event_;
  const Canary canary_;
  const std::unique_ptr<kernels::Stream> stream_;
  kernels::OwnedBuffer memory_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DEVICE_COPIER_H_

// trainer/step_mirror.h: device memory as the host sees it, for collectives.
//
// Where the host may touch the device's memory (the CPU), a mirror is that
// memory and its copies do nothing. Elsewhere it is pinned memory of the same
// size, filled and emptied by Download and Upload, which return when the bytes
// are there.
//
// Thread: the step thread. Allocates in Create only.

#ifndef HOLDFAST_TRAINER_STEP_MIRROR_H_
#define HOLDFAST_TRAINER_STEP_MIRROR_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "ckpt/base/status_macros.h"
#include "kernels/device.h"

namespace holdfast::trainer {

class Mirror {
 public:
  Mirror() = default;

  // `device` and `stream` outlive the mirror.
  static absl::StatusOr<Mirror> Create(kernels::Device& device,
                                       kernels::Stream& stream,
                                       const kernels::Buffer& memory,
                                       bool staged) {
    Mirror mirror;
    mirror.device_ = &device;
    mirror.stream_ = &stream;
    mirror.memory_ = memory;
    if (staged) {
      HF_ASSIGN_OR_RETURN(
          mirror.pinned_,
          kernels::AllocateOwned(device, kernels::MemorySpace::kPinned,
                                 memory.bytes));
    }
    return mirror;
  }

  std::byte* data() const {
    return staged() ? pinned_.buffer().data : memory_.data;
  }
  template <typename V>
  V* as() const {
    return reinterpret_cast<V*>(data());
  }
  size_t bytes() const { return memory_.bytes; }
  int64_t pinned_bytes() const {
    return static_cast<int64_t>(pinned_.buffer().bytes);
  }

  void Download(size_t offset, size_t bytes) const {
    if (!staged() || bytes == 0) return;
    device_->Copy(pinned_.buffer().Part(offset, bytes),
                  memory_.Part(offset, bytes), *stream_);
    device_->Sync(*stream_);
  }
  void Upload(size_t offset, size_t bytes) const {
    if (!staged() || bytes == 0) return;
    device_->Copy(memory_.Part(offset, bytes),
                  pinned_.buffer().Part(offset, bytes), *stream_);
    device_->Sync(*stream_);
  }

 private:
  bool staged() const { return pinned_.buffer().data != nullptr; }

  kernels::Device* device_ = nullptr;
  kernels::Stream* stream_ = nullptr;
  kernels::Buffer memory_;
  kernels::OwnedBuffer pinned_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_STEP_MIRROR_H_

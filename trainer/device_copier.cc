// trainer/device_copier.cc: see device_copier.h.

#include "trainer/device_copier.h"

#include <utility>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {

using kernels::Buffer;
using kernels::MemorySpace;

DeviceCopier::DeviceCopier(kernels::Device& device,
                           std::span<const Buffer> regions,
                           std::function<kernels::Event()> state_event,
                           Canary canary)
    : device_(device),
      regions_(regions.begin(), regions.end()),
      state_event_(std::move(state_event)),
      canary_(canary),
      stream_(device.NewStream()) {}

// A save that was given up may have left copies under way.
DeviceCopier::~DeviceCopier() { device_.Sync(*stream_); }

absl::StatusOr<std::span<std::byte>> DeviceCopier::TakeMemory(uint64_t bytes) {
  HF_CHECK(memory_.buffer().data == nullptr, "memory is taken once");
  HF_ASSIGN_OR_RETURN(
      memory_, kernels::AllocateOwned(device_, MemorySpace::kPinned, bytes));
  return std::span(memory_.buffer().data, memory_.buffer().bytes);
}

void DeviceCopier::Fix() {
  if (canary_ == Canary::kNoStateEvent) return;
  device_.WaitFor(*stream_, state_event_());
}

uint64_t DeviceCopier::CopyOut(uint32_t region, uint64_t offset,
                               std::span<std::byte> to) {
  device_.Copy({MemorySpace::kPinned, to.data(), to.size()},
               regions_[region].Part(offset, to.size()), *stream_);
  return static_cast<uint64_t>(device_.Record(*stream_));
}

uint64_t DeviceCopier::CopyIn(uint32_t region, uint64_t offset,
                              std::span<const std::byte> from) {
  // A buffer's memory is writable; a copy reads its source.
  auto* const data = const_cast<std::byte*>(from.data());
  device_.Copy(regions_[region].Part(offset, from.size()),
               {MemorySpace::kPinned, data, from.size()}, *stream_);
  return static_cast<uint64_t>(device_.Record(*stream_));
}

bool DeviceCopier::Passed(uint64_t event) {
  return canary_ == Canary::kNoCopyEvent ||
         device_.Query(kernels::Event{event});
}

void DeviceCopier::Await(uint64_t event) {
  device_.Sync(kernels::Event{event});
}

}  // namespace holdfast::trainer

// trainer/links/link_ops.cc: links of host and of device memory.

#include "trainer/links/link_ops.h"

#include <utility>
#include <vector>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
namespace {

constexpr int kTag = 0;

class HostLinkOps final : public LinkOps {
 public:
  HostLinkOps(Collectives& group, int64_t bytes_max)
      : group_(group),
        memory_(static_cast<size_t>(bytes_max) / sizeof(float), 0.0f) {}

  absl::Status Send(int64_t bytes, int to) override {
    HF_ASSIGN_OR_RETURN(const RequestId request,
                        group_.Isend(Part(bytes), to, kTag));
    return group_.Wait(request);
  }

  absl::Status Receive(int64_t bytes, int from) override {
    HF_ASSIGN_OR_RETURN(const RequestId request,
                        group_.Irecv(Part(bytes), from, kTag));
    return group_.Wait(request);
  }

  absl::Status AllReduce(int64_t bytes) override {
    return group_.AllReduceSum(
        std::span(memory_).first(static_cast<size_t>(bytes) / sizeof(float)));
  }

 private:
  std::span<std::byte> Part(int64_t bytes) {
    HF_CHECK(bytes >= 0 &&
                 static_cast<size_t>(bytes) <= memory_.size() * sizeof(float),
             "a message of %d bytes in a buffer of %d", bytes,
             memory_.size() * sizeof(float));
    return std::as_writable_bytes(std::span(memory_))
        .first(static_cast<size_t>(bytes));
  }

  Collectives& group_;
  std::vector<float> memory_;
};

class DeviceLinkOps final : public LinkOps {
 public:
  DeviceLinkOps(DeviceCollectives& group, kernels::Device& device,
                kernels::OwnedBuffer memory)
      : group_(group),
        stream_(device.NewStream()),
        memory_(std::move(memory)) {}

  absl::Status Send(int64_t bytes, int to) override {
    return Move(DeviceCollectives::Transfer::Kind::kSend, bytes, to);
  }
  absl::Status Receive(int64_t bytes, int from) override {
    return Move(DeviceCollectives::Transfer::Kind::kReceive, bytes, from);
  }
  absl::Status AllReduce(int64_t bytes) override {
    HF_RETURN_IF_ERROR(group_.AllReduceSum(
        {memory_.as<float>(), static_cast<size_t>(bytes) / sizeof(float)},
        *stream_));
    return group_.Sync(*stream_);
  }

 private:
  absl::Status Move(DeviceCollectives::Transfer::Kind kind, int64_t bytes,
                    int peer) {
    const kernels::Buffer part =
        memory_.buffer().Part(0, static_cast<size_t>(bytes));
    DeviceCollectives::Transfer transfer;
    transfer.kind = kind;
    transfer.data = {part.data, part.bytes};
    transfer.peer = peer;
    HF_RETURN_IF_ERROR(group_.Exchange({&transfer, 1}, *stream_));
    return group_.Sync(*stream_);
  }

  DeviceCollectives& group_;
  const std::unique_ptr<kernels::Stream> stream_;
  const kernels::OwnedBuffer memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinkOps>> NewDeviceLinkOps(
    DeviceCollectives& group, kernels::Device& device, int64_t bytes_max) {
  HF_ASSIGN_OR_RETURN(
      kernels::OwnedBuffer memory,
      kernels::AllocateOwned(device, kernels::MemorySpace::kDevice,
                             static_cast<size_t>(bytes_max)));
  return std::make_unique<DeviceLinkOps>(group, device, std::move(memory));
}

std::unique_ptr<LinkOps> NewHostLinkOps(Collectives& group, int64_t bytes_max) {
  return std::make_unique<HostLinkOps>(group, bytes_max);
}

}  // namespace holdfast::trainer

// trainer/links/link_ops.cc: links of host memory.

#include "trainer/links/link_ops.h"

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

  absl::Status Barrier() override { return group_.Barrier(); }

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

}  // namespace

std::unique_ptr<LinkOps> NewHostLinkOps(Collectives& group, int64_t bytes_max) {
  return std::make_unique<HostLinkOps>(group, bytes_max);
}

}  // namespace holdfast::trainer

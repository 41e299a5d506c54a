// kernels/device.cc: the CPU device, and what all devices share.

#include "kernels/device.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace holdfast::kernels {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

class ImmediateStream : public Stream {
 public:
  ImmediateStream() : Stream(/*immediate=*/true) {}

 private:
  void Enqueue(std::function<void()> work) override { work(); }
};

class CpuDevice : public Device {
 public:
  std::string_view name() const override { return "cpu"; }

  absl::StatusOr<Buffer> Allocate(MemorySpace space, size_t bytes) override {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* data = nullptr;
    if (::posix_memalign(&data, rounded < kHugePage ? kAlignment : kHugePage,
                         rounded) != 0) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "allocating %d bytes of memory: the system has no more", bytes));
    }
    // The state is written from this memory and read into it: the longer the
    // runs of it are, the faster (ckpt/base/aligned_buffer.h).
    if (rounded >= kHugePage) ::madvise(data, rounded, MADV_HUGEPAGE);
    std::memset(data, 0, rounded);
    return Buffer{space, static_cast<std::byte*>(data), bytes};
  }

  void Free(const Buffer& buffer) override { std::free(buffer.data); }

  std::unique_ptr<Stream> NewStream() override {
    return std::make_unique<ImmediateStream>();
  }

  void Copy(const Buffer& dst, const Buffer& src, Stream& stream) override {
    KERNEL_CHECK(dst.bytes == src.bytes, "copying %d bytes to %d", src.bytes,
                 dst.bytes);
    stream.Launch([=] {
      if (src.bytes > 0) std::memcpy(dst.data, src.data, src.bytes);
    });
  }

  Event Record(Stream&) override { return Event::kPassed; }
  void WaitFor(Stream&, Event) override {}
  bool Query(Event) override { return true; }
  void Sync(Event) override {}
  void Sync(Stream&) override {}
};

}  // namespace

Stream& CpuStream() {
  static ImmediateStream stream;
  return stream;
}

std::string_view ToString(MemorySpace space) {
  switch (space) {
    case MemorySpace::kHost:
      return "host";
    case MemorySpace::kShared:
      return "shared";
    case MemorySpace::kPinned:
      return "pinned";
    case MemorySpace::kDevice:
      return "device";
  }
  return "unknown";
}

Buffer Buffer::Part(size_t offset, size_t size) const {
  KERNEL_CHECK(offset <= bytes && size <= bytes - offset,
               "bytes [%d, %d + %d) of a buffer of %d", offset, offset, size,
               bytes);
  return Buffer{space, data + offset, size};
}

std::unique_ptr<Device> NewCpuDevice() { return std::make_unique<CpuDevice>(); }

absl::StatusOr<OwnedBuffer> AllocateOwned(Device& device, MemorySpace space,
                                          size_t bytes) {
  absl::StatusOr<Buffer> buffer = device.Allocate(space, bytes);
  if (!buffer.ok()) return buffer.status();
  return OwnedBuffer(&device, *buffer);
}

}  // namespace holdfast::kernels

// kernels/device.h: memory, streams and events of one device.
//
//   space    host code may touch it        on the CPU device
//   host     always                        the heap
//   pinned   yes; copies to it may lag     the heap
//   shared   yes, after synchronising      the heap
//   device   never                         the heap
//
// Portable code obeys the middle column. FakeDevice (kernels/fake_device.h)
// enforces it without a GPU.
//
// Thread: an implementation may be called from several threads; one stream
// belongs to one thread at a time.

#ifndef HOLDFAST_KERNELS_DEVICE_H_
#define HOLDFAST_KERNELS_DEVICE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/stream.h"

namespace holdfast::kernels {

enum class MemorySpace : uint8_t { kHost, kShared, kPinned, kDevice };

// "host", "shared", "pinned", "device"
std::string_view ToString(MemorySpace space);

// Borrowed memory. The device that allocated it frees it.
struct Buffer {
  MemorySpace space = MemorySpace::kHost;
  std::byte* data = nullptr;
  size_t bytes = 0;

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }

  // Bytes [offset, offset + size) of this buffer; CHECK-fails outside it.
  Buffer Part(size_t offset, size_t size) const;
};

// A point in a stream: passed when all that was launched before it has run.
// The default event has always passed. Events of one device only.
enum class Event : uint64_t { kPassed = 0 };

// Hears of the waits for a device of one thread, in that thread, from within
// the wait. It may launch nothing and wait for nothing on the device; it may
// fail it, which ends the wait.
class WaitListener {
 public:
  virtual ~WaitListener() = default;
  // A wait has gone on for 10 ms, or for 10 ms more: short ones are nobody's
  // business. `what` says what is waited for: "work up to AttentionForward".
  virtual void OnWaiting(std::string_view what) = 0;
  // The wait is over that OnWaiting was told of.
  virtual void OnWaitOver() = 0;
};

class Device {
 public:
  // Every allocation starts on a multiple of this: what O_DIRECT wants.
  static constexpr size_t kAlignment = 4096;

  virtual ~Device() = default;

  // "cpu", "fake", "cuda"
  virtual std::string_view name() const = 0;

  // Zeroed bytes. kResourceExhausted says how much was asked for and how much
  // the device still has. Allocate at start, not in a step.
  virtual absl::StatusOr<Buffer> Allocate(MemorySpace space, size_t bytes) = 0;

  // A whole buffer from Allocate; no work in flight may still use it. On a GPU
  // it waits, as Sync does, for all that has been launched so far; memory of a
  // GPU that has failed and whose work does not end is left to the end of the
  // process.
  virtual void Free(const Buffer& buffer) = 0;

  virtual std::unique_ptr<Stream> NewStream() = 0;

  // Enqueues a copy of src.bytes (equal to dst.bytes; CHECK-fails otherwise),
  // from any space to any other; the two do not overlap.
  virtual void Copy(const Buffer& dst, const Buffer& src, Stream& stream) = 0;

  virtual Event Record(Stream& stream) = 0;

  // Later work on `stream` waits until `event` has passed.
  virtual void WaitFor(Stream& stream, Event event) = 0;

  // True once passed; never blocks.
  virtual bool Query(Event event) = 0;

  // Blocks the calling thread until the event has passed, or all work launched
  // on the stream so far; a GPU has failed when that takes longer than the
  // limit.
  virtual void Sync(Event event) = 0;
  virtual void Sync(Stream& stream) = 0;

  // OK, or the first error of anything enqueued so far: after a Sync it covers
  // all that the Sync waited for. An error stays; results of work launched
  // since then mean nothing, and Sync and Query no longer wait. So it is asked
  // after a Sync and before the results count. Any thread.
  virtual absl::Status status() const { return absl::OkStatus(); }

  // How long a Sync may take on a GPU; ten minutes unless it is set. Any
  // thread.
  virtual void SetWaitLimit(std::chrono::milliseconds) {}

  // For the waits of the calling thread, until it is removed, which any thread
  // may do outside a wait. The first that was added is the first to hear of a
  // wait, and the last to hear of its end.
  virtual void AddWaitListener(WaitListener*) {}
  virtual void RemoveWaitListener(WaitListener*) {}
};

// Does everything at once on the calling thread; its events have always passed.
std::unique_ptr<Device> NewCpuDevice();

// Frees its buffer when it goes: one owner.
class OwnedBuffer {
 public:
  OwnedBuffer() = default;
  OwnedBuffer(Device* device, const Buffer& buffer)
      : device_(device), buffer_(buffer) {}
  OwnedBuffer(OwnedBuffer&& other) noexcept { *this = std::move(other); }
  OwnedBuffer& operator=(OwnedBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~OwnedBuffer() {
    if (device_ != nullptr) device_->Free(buffer_);
  }

  const Buffer& buffer() const { return buffer_; }
  template <typename T>
  T* as() const {
    return buffer_.as<T>();
  }

 private:
  Device* device_ = nullptr;
  Buffer buffer_;
};

absl::StatusOr<OwnedBuffer> AllocateOwned(Device& device, MemorySpace space,
                                          size_t bytes);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_DEVICE_H_

// kernels/cuda_device.cu: Device over the CUDA runtime.

#include <cuda_runtime.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/cuda_device.h"
#include "kernels/cuda_driver.h"
#include "kernels/cuda_events.h"
#include "kernels/cuda_kernel_set.h"
#include "kernels/cuda_wait.h"

namespace holdfast::kernels {
namespace {

using std::chrono::milliseconds;

constexpr size_t kHugePage = size_t{2} << 20;
constexpr milliseconds kWaitLimit{600'000};
// What a GPU that has failed gets to come to an end; no more than a wait.
constexpr milliseconds kLastWait{10'000};

std::string Words(cudaError_t error) {
  return absl::StrFormat("%s (%s)", cudaGetErrorString(error),
                         cudaGetErrorName(error));
}

class CudaDeviceImpl final : public CudaDevice {
 public:
  CudaDeviceImpl(const DeviceInfo& info, const CudaProcessor& processor)
      : info_(info), processor_(processor) {}

  ~CudaDeviceImpl() override {
    KERNEL_CHECK(streams_.empty(), "%d streams outlive their device",
                 streams_.size());
    if (!WaitUntilIdle()) return;
    MakeCurrent();
    // What they say changes nothing any more: nobody asks for the status.
    events_.Clear([](cudaEvent_t event) { cudaEventDestroy(event); });
    if (own_ != nullptr) cudaStreamDestroy(own_);
  }

  absl::Status Open() {
    MakeCurrent();
    // How the runtime waits where it waits on its own. Advice: refused, waits
    // cost more and end the same.
    if (cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync) != cudaSuccess) {
      cudaGetLastError();
    }
    Keep(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking),
         "making a stream");
    kernels_ = NewCudaKernelSet(info_);
    return status();
  }

  std::string_view name() const override { return "cuda"; }
  const CudaProcessor& processor() const override { return processor_; }

  // One comparison in the runtime when it is current already.
  void MakeCurrent() override {
    const cudaError_t error = cudaSetDevice(info_.ordinal);
    if (error != cudaSuccess) Keep(error, "making the device current");
  }

  absl::StatusOr<Buffer> Allocate(MemorySpace space, size_t bytes) override {
    MakeCurrent();
    switch (space) {
      case MemorySpace::kDevice:
        return AllocateDevice(bytes);
      case MemorySpace::kHost:
        return AllocateHost(space, bytes, /*registered=*/false);
      case MemorySpace::kShared:
      case MemorySpace::kPinned:
        return AllocateHost(space, bytes, /*registered=*/true);
    }
    return absl::InvalidArgumentError("no such memory space");
  }

  void Free(const Buffer& buffer) override {
    MakeCurrent();
    switch (buffer.space) {
      case MemorySpace::kDevice: {
        void* base = nullptr;
        {
          const std::lock_guard lock(mutex_);
          const auto found = bases_.find(buffer.data);
          KERNEL_CHECK(found != bases_.end(),
                       "freeing device memory that is not allocated");
          base = found->second;
          bases_.erase(found);
        }
        // It would wait for the whole GPU itself, and without end.
        if (WaitUntilIdle()) Keep(cudaFree(base), "freeing device memory");
        return;
      }
      case MemorySpace::kHost:
        std::free(buffer.data);
        return;
      case MemorySpace::kShared:
      case MemorySpace::kPinned:
        // A copy under way would fill what the heap has given to others.
        if (!WaitUntilIdle()) return;
        Keep(cudaHostUnregister(buffer.data), "unpinning memory");
        std::free(buffer.data);
        return;
    }
  }

  std::unique_ptr<Stream> NewStream() override {
    return NewCudaStream(CudaPriority::kNormal);
  }

  std::unique_ptr<CudaStream> NewCudaStream(CudaPriority priority) override {
    MakeCurrent();
    int least = 0, greatest = 0;
    Keep(cudaDeviceGetStreamPriorityRange(&least, &greatest),
         "asking for the priorities of streams");
    cudaStream_t handle = nullptr;
    Keep(cudaStreamCreateWithPriority(
             &handle, cudaStreamNonBlocking,
             priority == CudaPriority::kHigh ? greatest : least),
         "making a stream");
    auto stream = std::make_unique<CudaStream>(this, handle, kernels_.get());
    const std::lock_guard lock(mutex_);
    streams_.push_back(stream.get());
    return stream;
  }

  void Copy(const Buffer& dst, const Buffer& src, Stream& stream) override {
    KERNEL_CHECK(dst.bytes == src.bytes, "copying %d bytes to %d", src.bytes,
                 dst.bytes);
    CudaStream& mine = Mine(stream);
    mine.set_last_operation("Copy");
    if (src.bytes == 0) return;
    MakeCurrent();
    const cudaError_t error = cudaMemcpyAsync(dst.data, src.data, src.bytes,
                                              cudaMemcpyDefault, mine.handle());
    if (error != cudaSuccess) {
      Fail(absl::StrFormat("copying %d bytes from %s to %s memory: %s",
                           src.bytes, std::string(ToString(src.space)),
                           std::string(ToString(dst.space)), Words(error)));
      cudaGetLastError();
    }
  }

  Event Record(Stream& stream) override {
    MakeCurrent();
    const std::lock_guard lock(mutex_);
    return RecordLocked(Mine(stream));
  }

  void WaitFor(Stream& stream, Event event) override {
    MakeCurrent();
    const std::lock_guard lock(mutex_);
    const cudaEvent_t open = events_.Find(event);
    if (open == nullptr) return;
    KeepLocked(cudaStreamWaitEvent(Mine(stream).handle(), open, 0),
               "making a stream wait for an event");
  }

  bool Query(Event event) override {
    if (failed_) return true;
    MakeCurrent();
    const std::lock_guard lock(mutex_);
    const cudaEvent_t open = events_.Find(event);
    if (open == nullptr) return true;
    const cudaError_t error = cudaEventQuery(open);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    KeepLocked(error, "work up to ", events_.After(event));
    events_.Passed(event);
    return true;
  }

  void Sync(Event event) override {
    if (failed_) return;
    MakeCurrent();
    cudaEvent_t open = nullptr;
    const char* after = nullptr;
    {
      const std::lock_guard lock(mutex_);
      after = events_.After(event);
      open = events_.Pin(event);
    }
    if (open == nullptr) return;
    const cudaError_t error = Await("work up to ", after, wait_limit(),
                                    [&] { return cudaEventQuery(open); });
    const std::lock_guard lock(mutex_);
    KeepLocked(error, "work up to ", after);
    events_.Unpin(event, /*passed=*/!failed_);
  }

  void Sync(Stream& stream) override {
    if (failed_) return;
    MakeCurrent();
    CudaStream& mine = Mine(stream);
    Keep(Await("work up to ", mine.last_operation(), wait_limit(),
               [&] { return cudaStreamQuery(mine.handle()); }),
         "work on a stream whose last operation was ", mine.last_operation());
  }

  void SetWaitLimit(milliseconds limit) override { wait_limit_ = limit; }
  void AddWaitListener(WaitListener* listener) override {
    listeners_.Add(listener);
  }
  void RemoveWaitListener(WaitListener* listener) override {
    listeners_.Remove(listener);
  }

  absl::Status status() const override {
    if (!failed_) return absl::OkStatus();
    const std::lock_guard lock(mutex_);
    return status_;
  }

  void Fail(const std::string& what) override {
    const std::lock_guard lock(mutex_);
    FailLocked(what);
  }

  void CheckLaunch(const char* operation) override {
    const cudaError_t error = cudaGetLastError();
    // "Not ready" is an answer that a library asked for and left behind.
    if (error != cudaErrorNotReady) Keep(error, operation);
  }

 protected:
  void* GrowScratch(CudaStream& stream, void* old, size_t bytes) override {
    void* grown = nullptr;
    // Ordered on the stream: earlier work keeps the old memory until it is
    // done.
    if (old != nullptr) Keep(cudaFreeAsync(old, stream.handle()), "scratch");
    const cudaError_t error = cudaMallocAsync(&grown, bytes, stream.handle());
    if (error == cudaSuccess) return grown;
    cudaGetLastError();
    Fail(absl::StrFormat("%s needs %d bytes of scratch: %s",
                         stream.last_operation(), bytes, Words(error)));
    return nullptr;
  }

  bool Close(CudaStream& stream, void* scratch) override {
    MakeCurrent();
    if (stream.handle() != nullptr && !failed_) Sync(stream);
    // Whoever has a library's state waits for the whole GPU when that goes.
    const bool over =
        (!failed_ && stream.library_state() == nullptr) || WaitUntilIdle();
    {
      // Nobody asks it any more when it is destroyed.
      const std::lock_guard lock(mutex_);
      std::erase(streams_, &stream);
    }
    if (over && stream.handle() != nullptr) {
      // Waits for nothing where memory came from a stream's pool.
      if (scratch != nullptr) Keep(cudaFree(scratch), "scratch");
      Keep(cudaStreamDestroy(stream.handle()), "closing a stream");
    }
    return over;
  }

 private:
  CudaStream& Mine(Stream& stream) const {
    auto* mine = dynamic_cast<CudaStream*>(&stream);
    KERNEL_CHECK(mine != nullptr && &mine->device() == this,
                 "a stream of another device");
    return *mine;
  }

  milliseconds wait_limit() const { return wait_limit_; }

  // Asks until `ask` answers anything but "not ready". That when the wait was
  // given up: the device has failed by then, because it took too long or for
  // another reason. `what` and `operation` say what is waited for.
  template <typename Ask>
  cudaError_t Await(const char* what, const char* operation, milliseconds limit,
                    const Ask& ask) {
    Pause pause;
    WaitTeller teller(listeners_);
    while (true) {
      const cudaError_t error = ask();
      if (error != cudaErrorNotReady) return error;
      cudaGetLastError();  // or the next launch would find it
      if (failed_) return error;
      if (pause.waited() > limit) {
        Fail(absl::StrFormat(
            "%s%s was not over after %d s: a kernel hangs, or waits for a rank "
            "that does not come along",
            what, operation,
            std::chrono::ceil<std::chrono::seconds>(limit).count()));
        return error;
      }
      pause.Once();
      if (pause.IsTimeToTell()) {
        teller.Tell(absl::StrFormat("%s%s", what, operation));
      }
    }
  }

  // Waits until all work launched so far is over, whoever launched it. False
  // when it is not and no longer will be waited for: the device has failed.
  bool WaitUntilIdle() {
    if (stuck_) return false;
    MakeCurrent();
    if (!failed_) {
      std::vector<Event> ends;
      {
        const std::lock_guard lock(mutex_);
        for (CudaStream* const stream : streams_) {
          if (stream->handle() == nullptr) continue;
          ends.push_back(RecordLocked(*stream));
        }
      }
      for (const Event end : ends) Sync(end);
    }
    if (!failed_) return true;
    const std::lock_guard lock(last_wait_mutex_);
    for (Pause pause; !stuck_ && !IsIdle(); pause.Once()) {
      if (pause.waited() <= std::min(kLastWait, wait_limit())) continue;
      stuck_ = true;
      EndWithoutTeardown();
    }
    return !stuck_;
  }

  // An error means that nothing runs any more: it has ended the context.
  bool IsIdle() {
    const std::lock_guard lock(mutex_);
    bool idle = true;
    for (CudaStream* const stream : streams_) {
      if (stream->handle() == nullptr) continue;
      idle = idle && cudaStreamQuery(stream->handle()) != cudaErrorNotReady;
    }
    idle =
        idle && (own_ == nullptr || cudaStreamQuery(own_) != cudaErrorNotReady);
    cudaGetLastError();
    return idle;
  }

  Event RecordLocked(CudaStream& stream) {
    cudaEvent_t event = events_.Take([](cudaEvent_t open) {
      if (cudaEventQuery(open) != cudaErrorNotReady) return true;
      cudaGetLastError();  // or the next launch would find it
      return false;
    });
    if (event == nullptr) {
      KeepLocked(cudaEventCreateWithFlags(
                     &event, cudaEventDisableTiming | cudaEventBlockingSync),
                 "making an event");
    }
    if (event == nullptr) return Event::kPassed;
    const cudaError_t error = cudaEventRecord(event, stream.handle());
    if (error != cudaSuccess) {
      KeepLocked(error, "recording an event");
      events_.GiveBack(event);
      return Event::kPassed;
    }
    return events_.Add(event, stream.last_operation());
  }

  absl::StatusOr<Buffer> AllocateDevice(size_t bytes) {
    // The runtime aligns to 256 bytes; what is short of kAlignment is made up.
    const size_t rounded = RoundUp(bytes);
    void* base = nullptr;
    cudaError_t error = cudaMalloc(&base, rounded);
    if (error == cudaSuccess &&
        reinterpret_cast<uintptr_t>(base) % kAlignment != 0) {
      Keep(cudaFree(base), "freeing device memory");
      error = cudaMalloc(&base, rounded + kAlignment);
    }
    if (error != cudaSuccess) {
      cudaGetLastError();
      size_t free = 0, total = 0;  // stay so where the runtime does not say
      if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();
      return absl::ResourceExhaustedError(absl::StrFormat(
          "allocating %d bytes of memory on GPU %d (%s): %s; %d of %d bytes "
          "are free",
          bytes, info_.ordinal, info_.name, Words(error), free, total));
    }
    auto* const data = reinterpret_cast<std::byte*>(
        RoundUp(reinterpret_cast<uintptr_t>(base)));
    Keep(cudaMemsetAsync(data, 0, rounded, own_), "zeroing new memory");
    Keep(Await("zeroing new memory", "", wait_limit(),
               [&] { return cudaStreamQuery(own_); }),
         "zeroing new memory");
    const absl::Status zeroed = status();
    if (!zeroed.ok()) return zeroed;
    const std::lock_guard lock(mutex_);
    bases_[data] = base;
    return Buffer{MemorySpace::kDevice, data, bytes};
  }

  absl::StatusOr<Buffer> AllocateHost(MemorySpace space, size_t bytes,
                                      bool registered) {
    const size_t rounded = RoundUp(bytes);
    void* data = nullptr;
    if (::posix_memalign(&data, rounded < kHugePage ? kAlignment : kHugePage,
                         rounded) != 0) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "allocating %d bytes of %s memory: the system has no more", bytes,
          std::string(ToString(space))));
    }
    // As on the CPU device: long runs are written and pinned faster.
    if (rounded >= kHugePage) ::madvise(data, rounded, MADV_HUGEPAGE);
    std::memset(data, 0, rounded);
    if (registered) {
      const cudaError_t error = cudaHostRegister(
          data, rounded, cudaHostRegisterPortable | cudaHostRegisterMapped);
      if (error != cudaSuccess) {
        cudaGetLastError();
        std::free(data);
        return absl::ResourceExhaustedError(
            absl::StrFormat("pinning %d bytes of host memory for GPU %d: %s",
                            bytes, info_.ordinal, Words(error)));
      }
    }
    return Buffer{space, static_cast<std::byte*>(data), bytes};
  }

  static size_t RoundUp(size_t bytes) {
    return std::max(kAlignment,
                    (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }

  void Keep(cudaError_t error, const char* doing, const char* operation = "") {
    if (error == cudaSuccess) return;
    const std::lock_guard lock(mutex_);
    KeepLocked(error, doing, operation);
  }
  void KeepLocked(cudaError_t error, const char* doing,
                  const char* operation = "") {
    if (error == cudaSuccess) return;
    cudaGetLastError();
    FailLocked(absl::StrFormat("%s%s: %s", doing, operation, Words(error)));
  }
  void FailLocked(const std::string& what) {
    if (failed_) return;
    // Not by assignment, which nvcc takes for a status that is dropped.
    status_.Update(absl::UnavailableError(
        absl::StrFormat("GPU %d (%s): %s; this step's results mean nothing",
                        info_.ordinal, info_.name, what)));
    failed_ = true;
  }

  const DeviceInfo info_;
  const CudaProcessor processor_;
  std::unique_ptr<KernelSet> kernels_;
  cudaStream_t own_ = nullptr;
  std::atomic<milliseconds> wait_limit_{kWaitLimit};
  std::atomic<bool> failed_{false};
  std::atomic<bool> stuck_{false};  // Failed, and work does not end.
  std::mutex last_wait_mutex_;      // Before mutex_.
  WaitListeners listeners_;

  mutable std::mutex mutex_;
  absl::Status status_;
  std::vector<CudaStream*> streams_;
  std::map<std::byte*, void*> bases_;  // Of device memory: what to free.
  CudaEvents<cudaEvent_t> events_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> OpenCudaDevice(int ordinal) {
  const absl::StatusOr<DeviceInfo> info = CudaDeviceInfo(ordinal);
  if (!info.ok()) return info.status();
  const absl::StatusOr<CudaProcessor> processor = AskCudaProcessor(*info);
  if (!processor.ok()) return processor.status();
  auto device = std::make_unique<CudaDeviceImpl>(*info, *processor);
  const absl::Status opened = device->Open();
  if (!opened.ok()) return opened;
  return device;
}

}  // namespace holdfast::kernels

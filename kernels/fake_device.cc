// kernels/fake_device.cc: queues that run late, over memory that is locked.

#include "kernels/fake_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace holdfast::kernels {
namespace {

class FakeDeviceImpl;

// One entry of a queue: work, or a wait for an event of another stream.
struct Operation {
  std::function<void()> work;  // Null for a wait.
  Event wait_for = Event::kPassed;
  Event passes = Event::kPassed;  // The event this operation's end passes.
  Buffer fills = {};              // Pinned memory that it fills, for a copy.
  bool spoiled = false;           // That holds garbage already.
};

class FakeStream : public Stream {
 public:
  explicit FakeStream(FakeDeviceImpl* device)
      : Stream(/*immediate=*/false), device_(device) {}
  ~FakeStream() override;

  std::deque<Operation> queue;
  bool delayed = false;

 private:
  void Enqueue(std::function<void()> work) override;

  FakeDeviceImpl* const device_;
};

class FakeDeviceImpl : public FakeDevice {
 public:
  FakeDeviceImpl(const FakeDeviceOptions& options, std::byte* arena,
                 size_t arena_bytes)
      : options_(options),
        arena_(arena),
        arena_bytes_(arena_bytes),
        random_(options.seed) {
    free_[0] = arena_bytes;
  }

  ~FakeDeviceImpl() override {
    KERNEL_CHECK(streams_.empty(), "%d streams outlive their device",
                 streams_.size());
    munmap(arena_, arena_bytes_);
  }

  std::string_view name() const override { return "fake"; }

  absl::StatusOr<Buffer> Allocate(MemorySpace space, size_t bytes) override {
    const std::lock_guard lock(mutex_);
    const size_t rounded = std::max(RoundUp(bytes), kAlignment);
    if (space != MemorySpace::kDevice) {
      void* data = std::aligned_alloc(kAlignment, rounded);
      if (data == nullptr) {
        return absl::ResourceExhaustedError(absl::StrFormat(
            "allocating %d bytes of %s memory: the system has no more", bytes,
            std::string(ToString(space))));
      }
      std::memset(data, 0, rounded);
      return Buffer{space, static_cast<std::byte*>(data), bytes};
    }
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const auto [offset, available] = *it;
      if (available < rounded) continue;
      free_.erase(it);
      if (available > rounded) free_[offset + rounded] = available - rounded;
      used_ += rounded;
      std::byte* data = arena_ + offset;
      Unlock();
      std::memset(data, 0, rounded);
      Lock();
      return Buffer{space, data, bytes};
    }
    return absl::ResourceExhaustedError(absl::StrFormat(
        "allocating %d bytes of device memory: %d of %d are in use and no free "
        "range is long enough",
        bytes, used_, arena_bytes_));
  }

  void Free(const Buffer& buffer) override {
    const std::lock_guard lock(mutex_);
    if (buffer.space != MemorySpace::kDevice) {
      std::free(buffer.data);
      return;
    }
    size_t offset = static_cast<size_t>(buffer.data - arena_);
    size_t length = std::max(RoundUp(buffer.bytes), kAlignment);
    used_ -= length;
    const auto next = free_.lower_bound(offset);
    KERNEL_CHECK(next == free_.end() || next->first >= offset + length,
                 "freeing device memory that is free");
    if (next != free_.end() && next->first == offset + length) {
      length += next->second;
      free_.erase(next);
    }
    const auto after = free_.lower_bound(offset);
    if (after != free_.begin()) {
      const auto previous = std::prev(after);
      KERNEL_CHECK(previous->first + previous->second <= offset,
                   "freeing device memory that is free");
      if (previous->first + previous->second == offset) {
        offset = previous->first;
        length += previous->second;
        free_.erase(previous);
      }
    }
    free_[offset] = length;
  }

  std::unique_ptr<Stream> NewStream() override {
    const std::lock_guard lock(mutex_);
    auto stream = std::make_unique<FakeStream>(this);
    streams_.push_back(stream.get());
    return stream;
  }

  void Copy(const Buffer& dst, const Buffer& src, Stream& stream) override {
    KERNEL_CHECK(dst.bytes == src.bytes, "copying %d bytes to %d", src.bytes,
                 dst.bytes);
    Operation copy;
    copy.work = [=] {
      if (src.bytes > 0) std::memcpy(dst.data, src.data, src.bytes);
    };
    if (dst.space == MemorySpace::kPinned) copy.fills = dst;
    const std::lock_guard lock(mutex_);
    const Closing closing(this);
    Push(Mine(stream), std::move(copy));
  }

  Event Record(Stream& stream) override {
    const std::lock_guard lock(mutex_);
    const Closing closing(this);
    FakeStream& fake = Mine(stream);
    const Event event{++last_event_};
    if (fake.queue.empty()) return Event::kPassed;
    // Rides on the last operation, unless that one carries an event already.
    Operation& last = fake.queue.back();
    if (last.passes != Event::kPassed) return last.passes;
    last.passes = event;
    open_events_.push_back(event);
    RunSome();
    return event;
  }

  void WaitFor(Stream& stream, Event event) override {
    const std::lock_guard lock(mutex_);
    FakeStream& fake = Mine(stream);
    if (!IsOpen(event)) return;
    Operation wait;
    wait.wait_for = event;
    fake.queue.push_back(std::move(wait));
  }

  bool Query(Event event) override {
    const std::lock_guard lock(mutex_);
    const Closing closing(this);
    RunSome();
    return !IsOpen(event);
  }

  void Sync(Event event) override {
    const std::lock_guard lock(mutex_);
    const Closing closing(this);
    while (IsOpen(event)) {
      KERNEL_CHECK(RunOne(), "nothing can run, and an event has not passed");
    }
  }

  void Sync(Stream& stream) override {
    const std::lock_guard lock(mutex_);
    const Closing closing(this);
    Drain(Mine(stream));
  }

  int64_t Pump(int64_t operations) override {
    const std::lock_guard lock(mutex_);
    const Closing closing(this);
    int64_t ran = 0;
    while (ran < operations && RunOne()) ++ran;
    return ran;
  }

  int64_t pending() const override {
    const std::lock_guard lock(mutex_);
    int64_t count = 0;
    for (const FakeStream* stream : streams_) {
      count += static_cast<int64_t>(stream->queue.size());
    }
    return count;
  }

  size_t device_bytes_used() const override {
    const std::lock_guard lock(mutex_);
    return used_;
  }

  void Enqueue(FakeStream& stream, std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    const Closing closing(this);
    Operation operation;
    operation.work = std::move(work);
    Push(stream, std::move(operation));
  }

  void Delay(Stream& stream) override {
    const std::lock_guard lock(mutex_);
    Mine(stream).delayed = true;
  }

  void Fail(absl::Status why) override {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return;
    status_ = std::move(why);
    for (FakeStream* stream : streams_) stream->queue.clear();
    open_events_.clear();
  }

  absl::Status status() const override {
    const std::lock_guard lock(mutex_);
    return status_;
  }

  // A stream that goes away runs what it still holds.
  void Remove(FakeStream& stream) {
    const std::lock_guard lock(mutex_);
    const Closing closing(this);
    Drain(stream);
    streams_.erase(std::find(streams_.begin(), streams_.end(), &stream));
  }

 private:
  static size_t RoundUp(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  static FakeStream& Mine(Stream& stream) {
    auto* fake = dynamic_cast<FakeStream*>(&stream);
    KERNEL_CHECK(fake != nullptr, "a stream of another device");
    return *fake;
  }

  void Unlock() { Protect(PROT_READ | PROT_WRITE); }
  void Lock() { Protect(PROT_NONE); }
  void Protect(int protection) {
    KERNEL_CHECK(mprotect(arena_, arena_bytes_, protection) == 0,
                 "mprotect of %d bytes: %s", arena_bytes_,
                 std::strerror(errno));
  }

  // Closes the memory at the end of a call that may have run operations: once,
  // since changing the protection costs more than most of them.
  class Closing {
   public:
    explicit Closing(FakeDeviceImpl* device) : device_(device) {}
    ~Closing() {
      if (device_->open_) device_->Lock();
      device_->open_ = false;
    }

   private:
    FakeDeviceImpl* const device_;
  };

  bool IsOpen(Event event) const {
    return std::find(open_events_.begin(), open_events_.end(), event) !=
           open_events_.end();
  }

  void Push(FakeStream& stream, Operation operation) {
    if (!status_.ok()) return;
    stream.queue.push_back(std::move(operation));
    Spoil(stream);
    RunSome();
  }

  // A copy that may run may have begun.
  void Spoil(FakeStream& stream) {
    if (!CanRun(stream)) return;
    Operation& next = stream.queue.front();
    if (next.fills.bytes == 0 || next.spoiled) return;
    next.spoiled = true;
    std::memset(next.fills.data, kGarbage, next.fills.bytes);
  }

  bool CanRun(const FakeStream& stream) const {
    return !stream.queue.empty() && !IsOpen(stream.queue.front().wait_for);
  }

  void RunFront(FakeStream& stream) {
    Operation operation = std::move(stream.queue.front());
    stream.queue.pop_front();
    if (operation.work != nullptr) {
      if (!open_) Unlock();
      open_ = true;
      operation.work();
    }
    if (operation.passes != Event::kPassed) {
      open_events_.erase(std::find(open_events_.begin(), open_events_.end(),
                                   operation.passes));
    }
    for (FakeStream* each : streams_) Spoil(*each);
  }

  // Runs one operation of a stream drawn from those that can.
  bool RunOne() { return RunOneOf(false) || RunOneOf(true); }

  bool RunOneOf(bool delayed) {
    const auto may = [&](const FakeStream* stream) {
      return stream->delayed == delayed && CanRun(*stream);
    };
    const auto able = std::count_if(streams_.begin(), streams_.end(), may);
    if (able == 0) return false;
    size_t drawn = random_() % static_cast<size_t>(able);
    for (FakeStream* stream : streams_) {
      if (may(stream) && drawn-- == 0) {
        RunFront(*stream);
        return true;
      }
    }
    return false;
  }

  void RunSome() {
    if (options_.eager_max <= 0) return;
    uint64_t count = random_() % static_cast<uint64_t>(options_.eager_max + 1);
    while (count-- > 0 && RunOne()) {
    }
  }

  void Drain(FakeStream& stream) {
    while (!stream.queue.empty()) {
      KERNEL_CHECK(RunOne(), "nothing can run, and a stream has not ended");
    }
  }

  static constexpr int kGarbage = 0xc5;

  const FakeDeviceOptions options_;
  std::byte* const arena_;
  const size_t arena_bytes_;

  mutable std::mutex mutex_;
  bool open_ = false;  // The memory, while a call runs operations.
  std::mt19937_64 random_;
  std::map<size_t, size_t> free_;  // Offset to length, no two adjacent.
  size_t used_ = 0;
  std::vector<FakeStream*> streams_;
  std::vector<Event> open_events_;
  absl::Status status_;
  uint64_t last_event_ = 0;
};

FakeStream::~FakeStream() { device_->Remove(*this); }

void FakeStream::Enqueue(std::function<void()> work) {
  device_->Enqueue(*this, std::move(work));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FakeDevice>> NewFakeDevice(
    const FakeDeviceOptions& options) {
  const size_t bytes = (options.device_bytes + Device::kAlignment - 1) /
                       Device::kAlignment * Device::kAlignment;
  void* arena = mmap(nullptr, bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "reserving %d bytes of address space for the fake device: %s", bytes,
        std::strerror(errno)));
  }
  return std::make_unique<FakeDeviceImpl>(
      options, static_cast<std::byte*>(arena), bytes);
}

}  // namespace holdfast::kernels

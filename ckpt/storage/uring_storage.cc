// ckpt/storage/uring_storage.cc: the one door to liburing: UringStorage, and
// the raw loop that it is measured against.

#include "ckpt/storage/uring_storage.h"

#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/storage/errno_status.h"
#include "ckpt/storage/file_table.h"
#include "ckpt/storage/names.h"
#include "ckpt/storage/posix_tree.h"
#include "ckpt/storage/tree_storage.h"

namespace holdfast::ckpt {
namespace {

// One request moves at most so much (the kernel's limit is 2 GiB - 4 KiB), and
// a registered buffer may be no larger.
constexpr size_t kPieceMax = size_t{1} << 30;
// What the kernel accepts in one table (IORING_MAX_REG_BUFFERS).
constexpr size_t kBuffersMax = 1 << 14;

absl::Status InitRing(uint32_t entries, io_uring* ring) {
  io_uring_params params = {};
  const int result = io_uring_queue_init_params(entries, ring, &params);
  if (result < 0) {
    return ErrnoStatus(-result, "set up", "an io_uring ring");
  }
  // Linux 5.11; without it a timed wait would take a place in the ring.
  if ((params.features & IORING_FEAT_EXT_ARG) == 0) {
    io_uring_queue_exit(ring);
    return absl::UnimplementedError(
        "set up an io_uring ring: this kernel's io_uring is older than 5.11");
  }
  return absl::OkStatus();
}

class UringStorage final : public TreeStorage {
 public:
  UringStorage(PosixTree tree, const UringOptions& options, io_uring ring)
      : TreeStorage(std::move(tree), options.queue_depth, options.files_max,
                    options.direct_io ? O_DIRECT : 0),
        ring_(ring),
        calls_(options.queue_depth) {
    traits_.name = "io_uring";
    traits_.direct_io = options.direct_io;
    for (uint32_t i = 0; i < calls_.size(); ++i) calls_[i].next_free = i + 1;
  }

  ~UringStorage() override {
    // What the kernel would not take, or was held back, it does not use.
    for (;;) {
      Submit();
      if (in_flight_ <= held_back_ + io_uring_sq_ready(&ring_)) break;
      io_uring_cqe* cqe = nullptr;
      io_uring_wait_cqe(&ring_, &cqe);
      Reap();
    }
    io_uring_queue_exit(&ring_);
  }

  UringStorage(const UringStorage&) = delete;
  UringStorage& operator=(const UringStorage&) = delete;

  void RegisterBuffers(std::span<const std::span<std::byte>> buffers) override {
    HF_CHECK(in_flight_ == 0, "registering buffers with %d calls in flight",
             in_flight_);
    if (!buffers_.empty()) io_uring_unregister_buffers(&ring_);
    buffers_.clear();
    traits_.registered_buffers = false;
    for (const std::span<std::byte> buffer : buffers) AddBuffer(buffer);
    if (buffers_.empty()) return;
    std::sort(
        buffers_.begin(), buffers_.end(),
        [](const iovec& a, const iovec& b) { return a.iov_base < b.iov_base; });
    const int result =
        buffers_.size() > kBuffersMax
            ? -E2BIG
            : io_uring_register_buffers(&ring_, buffers_.data(),
                                        static_cast<unsigned>(buffers_.size()));
    if (result < 0) {
      HF_LOG_INFO(
          "storage: writing from ordinary memory: %s (ulimit -l bounds it)",
          std::string(ErrnoStatus(-result, "register",
                                  absl::StrFormat("%d buffers with io_uring",
                                                  buffers_.size()))
                          .message()));
      buffers_.clear();
      return;
    }
    traits_.registered_buffers = true;
  }

  void Write(FileId file, uint64_t offset, std::span<const std::byte> data,
             OpTag tag) override {
    CheckAligned(data.data(), offset, data.size());
    answers_.Begin();
    OpenFile& slot = files_.GetForWriting(file);
    if (!slot.poisoned.ok()) {
      answers_.Finish(tag, PoisonedStatus(slot, "write"));
      return;
    }
    ++slot.writes_in_flight;
    // The kernel only reads from it.
    Begin(Kind::kWrite, slot, tag, offset, const_cast<std::byte*>(data.data()),
          data.size(), data.size());
  }

  void Read(FileId file, uint64_t offset, std::span<std::byte> out,
            OpTag tag) override {
    CheckAligned(out.data(), offset, out.size());
    answers_.Begin();
    OpenFile& slot = files_.GetForReading(file);
    size_t real = 0;
    absl::Status status = CheckReadRange(slot, offset, out.size(), &real);
    if (!status.ok()) {
      answers_.Finish(tag, std::move(status));
      return;
    }
    Begin(Kind::kRead, slot, tag, offset, out.data(), out.size(), real);
  }

  void Sync(FileId file, OpTag tag) override {
    answers_.Begin();
    OpenFile& slot = files_.GetForWriting(file);
    if (!slot.poisoned.ok()) {
      answers_.Finish(tag, PoisonedStatus(slot, "sync"));
      return;
    }
    Begin(Kind::kSync, slot, tag, 0, nullptr, 0, 0);
  }

  size_t Poll(std::span<Completion> out) override {
    Submit();
    Reap();
    return answers_.Poll(out);
  }

  void WaitForCompletion(int wait_ms) override {
    Submit();
    Reap();
    if (answers_.finished() > 0) return;
    __kernel_timespec wait = {wait_ms / 1000, wait_ms % 1000 * 1000000};
    io_uring_cqe* cqe = nullptr;
    // -ETIME and -EINTR need nothing: the caller polls and comes again.
    io_uring_wait_cqe_timeout(&ring_, &cqe, &wait);
    Reap();
  }

 private:
  // What lies in huge pages is registered apart from what is before and behind:
  // only a buffer whose pages are all of one size is seen by the kernel as long
  // runs (io_check_coalesce_buffer), and a megabyte of 256 pages is more than
  // some devices take at once: each write would become a large and a small one.
  void AddBuffer(std::span<std::byte> buffer) {
    const auto at = reinterpret_cast<uintptr_t>(buffer.data());
    const size_t head = std::min(RoundUp(at, kHugePage) - at, buffer.size());
    const size_t body = (buffer.size() - head) / kHugePage * kHugePage;
    const auto add = [&](size_t begin, size_t end) {
      for (; begin < end; begin += kPieceMax) {
        buffers_.push_back(
            {buffer.data() + begin, std::min(kPieceMax, end - begin)});
      }
    };
    add(0, head);
    add(head, head + body);
    add(head + body, buffer.size());
  }

  enum class Kind : uint8_t { kWrite, kRead, kSync };
  struct Call {
    Kind kind{};
    bool held_back = false;  // A Sync that waits for the file's writes.
    OpTag tag{};
    OpenFile* file = nullptr;
    uint64_t offset = 0;
    std::byte* memory = nullptr;
    size_t size = 0;  // Of the memory.
    size_t real = 0;  // Bytes to move; fewer than `size` at a file's end.
    size_t done = 0;
    uint32_t next_free = 0;
    int again = 0;  // Times in a row that the kernel had it made again.
  };

  void Begin(Kind kind, OpenFile& file, OpTag tag, uint64_t offset,
             std::byte* memory, size_t size, size_t real) {
    const uint32_t index = first_free_;
    HF_CHECK(index < calls_.size(), "no free place for a call");
    Call& call = calls_[index];
    first_free_ = call.next_free;
    call = {kind, false, tag, &file, offset, memory, size, real, 0, 0, 0};
    ++file.in_flight;
    ++in_flight_;
    if (kind == Kind::kSync && file.writes_in_flight > 0) {
      call.held_back = true;
      ++held_back_;
      return;
    }
    Start(index);
  }

  // Puts the call, or what is left of it, into the ring.
  void Start(uint32_t index) {
    Call& call = calls_[index];
    if (call.kind == Kind::kSync) {
      if (std::exchange(call.held_back, false)) --held_back_;
      if (call.file->poisoned.ok()) {
        call.file->poisoned = CutToWritten(*call.file);
        if (!call.file->poisoned.ok()) return End(index, call.file->poisoned);
      } else {
        return End(index, PoisonedStatus(*call.file, "sync"));
      }
    }
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    HF_CHECK(sqe != nullptr, "the ring is full with %d calls in flight",
             in_flight_);
    const int fd = call.file->fd.get();
    std::byte* const at = call.memory + call.done;
    const auto size =
        static_cast<unsigned>(std::min(kPieceMax, call.size - call.done));
    const uint64_t offset = call.offset + call.done;
    const int buffer = call.kind == Kind::kSync ? -1 : BufferOf(at, size);
    switch (call.kind) {
      case Kind::kWrite:
        if (buffer >= 0) {
          io_uring_prep_write_fixed(sqe, fd, at, size, offset, buffer);
        } else {
          io_uring_prep_write(sqe, fd, at, size, offset);
        }
        break;
      case Kind::kRead:
        if (buffer >= 0) {
          io_uring_prep_read_fixed(sqe, fd, at, size, offset, buffer);
        } else {
          io_uring_prep_read(sqe, fd, at, size, offset);
        }
        break;
      case Kind::kSync:
        io_uring_prep_fsync(sqe, fd, 0);
        break;
    }
    io_uring_sqe_set_data64(sqe, index);
    Submit();
  }

  // Hands prepared requests to the kernel. One that is short of memory takes
  // them later: every Poll tries again.
  void Submit() {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int result = io_uring_submit(&ring_);
      if (result == -EINTR) continue;
      if (result < 0 && result != -EAGAIN && result != -EBUSY &&
          !told_submit_error_) {
        told_submit_error_ = true;
        HF_LOG_WARNING(
            "storage: %s; it is tried again at every poll",
            std::string(
                ErrnoStatus(-result, "submit", "to io_uring").message()));
      }
      if (result <= 0) return;
    }
  }

  void Reap() {
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      const auto index = static_cast<uint32_t>(io_uring_cqe_get_data64(cqe));
      const int result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      OnResult(index, result);
    }
  }

  // Nobody here cancels a request: the kernel has not begun it, because it got
  // no thread for it (io-wq's threads count as the user's: ulimit -u, the
  // cgroup's pids.max). This thread waits for the disk instead. Answers as the
  // ring does.
  int ByPlainCall(const Call& call) {
    static std::atomic<bool> told = false;
    if (!told.exchange(true)) {
      HF_LOG_WARNING(
          "storage: the kernel has no thread for io_uring (is the limit of "
          "processes reached: ulimit -u, the cgroup's pids.max?); plain calls "
          "do what it gives back");
    }
    const int fd = call.file->fd.get();
    std::byte* const at = call.memory + call.done;
    const size_t size = std::min(kPieceMax, call.size - call.done);
    const auto offset = static_cast<off_t>(call.offset + call.done);
    ssize_t result = 0;
    switch (call.kind) {
      case Kind::kWrite:
        result = ::pwrite(fd, at, size, offset);
        break;
      case Kind::kRead:
        result = ::pread(fd, at, size, offset);
        break;
      case Kind::kSync:
        result = ::fsync(fd);
        break;
    }
    return result < 0 ? -errno : static_cast<int>(result);
  }

  void OnResult(uint32_t index, int result) {
    Call& call = calls_[index];
    if (result == -ECANCELED) result = ByPlainCall(call);
    if ((result == -EINTR || result == -EAGAIN) && ++call.again < kAgainMax) {
      return Start(index);
    }
    if (result >= 0) call.again = 0;
    if (call.kind == Kind::kSync) {
      if (result < 0) {
        call.file->poisoned = ErrnoStatus(-result, "sync", call.file->path);
      }
      return End(index, call.file->poisoned);
    }
    const bool is_write = call.kind == Kind::kWrite;
    const uint64_t offset = call.offset + call.done;
    if (result < 0 || (result == 0 && is_write)) {
      absl::Status status =
          TransferError(result < 0 ? -result : EIO, is_write ? "write" : "read",
                        *call.file, offset, call.size - call.done);
      if (is_write) call.file->poisoned = status;
      return End(index, std::move(status));
    }
    const auto moved = static_cast<size_t>(result);
    if (call.done + moved >= call.real) {
      call.done = call.real;
      return End(index, absl::OkStatus());
    }
    // Short. Direct transfers go on from an aligned place.
    const size_t aligned = moved / kStorageAlignment * kStorageAlignment;
    if (!is_write && aligned == 0) {
      return End(index, ShrankStatus(*call.file, offset + moved));
    }
    if (aligned == 0 && ++stuck_ > kStuckMax) {
      call.file->poisoned = TransferError(EIO, "write", *call.file, offset,
                                          call.size - call.done);
      return End(index, call.file->poisoned);
    }
    if (aligned > 0) stuck_ = 0;
    call.done += aligned;
    Start(index);
  }

  void End(uint32_t index, absl::Status status) {
    Call& call = calls_[index];
    OpenFile& file = *call.file;
    const Kind kind = call.kind;
    const bool ok = status.ok();
    if (ok && kind == Kind::kWrite) {
      file.written_end = std::max(file.written_end, call.offset + call.size);
      file.size = std::max(file.size, file.written_end);
    }
    if (ok && kind == Kind::kRead) {
      std::memset(call.memory + call.real, 0, call.size - call.real);
    }
    answers_.Finish(call.tag, std::move(status), ok ? call.real : 0);
    call.next_free = first_free_;
    first_free_ = index;
    --in_flight_;
    --file.in_flight;
    if (kind != Kind::kWrite || --file.writes_in_flight > 0) return;
    if (file.in_flight == 0) return;
    for (uint32_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i].held_back && calls_[i].file == &file) Start(i);
    }
  }

  // The registered buffer that holds all of [at, at + size), or -1.
  int BufferOf(const std::byte* at, size_t size) const {
    const auto after = std::upper_bound(
        buffers_.begin(), buffers_.end(), at,
        [](const std::byte* place, const iovec& buffer) {
          return place < static_cast<const std::byte*>(buffer.iov_base);
        });
    if (after == buffers_.begin()) return -1;
    const iovec& buffer = *(after - 1);
    const size_t begin = static_cast<size_t>(
        at - static_cast<const std::byte*>(buffer.iov_base));
    if (begin + size > buffer.iov_len) return -1;
    return static_cast<int>(after - 1 - buffers_.begin());
  }

  // Answers of EINTR or EAGAIN to one call, one after the other, before they
  // are its error. Each is a turn through the kernel of some microseconds.
  static constexpr int kAgainMax = 10'000;
  // Writes that move less than a block, one after the other, before it is
  // called an error.
  static constexpr int kStuckMax = 1000;

  io_uring ring_;
  std::vector<Call> calls_;
  std::vector<iovec> buffers_;  // Registered; by address.
  uint32_t first_free_ = 0;
  uint32_t in_flight_ = 0;  // Those held back included.
  uint32_t held_back_ = 0;
  int stuck_ = 0;
  bool told_submit_error_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Storage>> OpenUringStorage(
    const UringOptions& options) {
  HF_CHECK(options.queue_depth > 0 && options.queue_depth <= 4096 &&
               options.files_max > 0,
           "queue depth %d, %d files", options.queue_depth, options.files_max);
  HF_ASSIGN_OR_RETURN(PosixTree tree, PosixTree::Open(options.root));
  io_uring ring;
  HF_RETURN_IF_ERROR(InitRing(options.queue_depth, &ring));
  return std::make_unique<UringStorage>(std::move(tree), options, ring);
}

absl::Status ProbeRegisteredBuffers(std::span<std::byte> memory) {
  io_uring ring;
  HF_RETURN_IF_ERROR(InitRing(1, &ring));
  const iovec buffer = {memory.data(), memory.size()};
  const int result = io_uring_register_buffers(&ring, &buffer, 1);
  io_uring_queue_exit(&ring);
  if (result >= 0) return absl::OkStatus();
  return ErrnoStatus(
      -result, "register",
      absl::StrFormat("%d bytes of memory with io_uring", memory.size()));
}

absl::Status ProbeUring() {
  io_uring ring;
  HF_RETURN_IF_ERROR(InitRing(1, &ring));
  io_uring_queue_exit(&ring);
  return absl::OkStatus();
}

}  // namespace holdfast::ckpt

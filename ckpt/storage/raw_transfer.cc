// ckpt/storage/raw_transfer.cc: submit, wait, repeat.

#include "ckpt/storage/raw_transfer.h"

#include <liburing.h>

#include <cerrno>

#include "ckpt/base/check.h"
#include "ckpt/storage/errno_status.h"

namespace holdfast::ckpt {

absl::Status RawUringTransfer(int fd, bool is_write,
                              std::span<std::byte> memory, uint64_t offset,
                              uint64_t size, size_t block, uint32_t depth) {
  HF_CHECK(
      size % block == 0 && memory.size() % block == 0 && memory.size() >= block,
      "%d bytes in blocks of %d from %d bytes of memory", size, block,
      memory.size());
  io_uring ring;
  int error = -io_uring_queue_init(depth, &ring, 0);
  if (error != 0) return ErrnoStatus(error, "set up", "an io_uring ring");
  uint64_t begun = 0;
  uint64_t ended = 0;
  while (ended < (error == 0 ? size : begun)) {
    while (error == 0 && begun < size && begun - ended < depth * block) {
      io_uring_sqe* const sqe = io_uring_get_sqe(&ring);
      if (sqe == nullptr) break;
      std::byte* const at = memory.data() + begun % memory.size();
      if (is_write) {
        io_uring_prep_write(sqe, fd, at, static_cast<unsigned>(block),
                            offset + begun);
      } else {
        io_uring_prep_read(sqe, fd, at, static_cast<unsigned>(block),
                           offset + begun);
      }
      begun += block;
      io_uring_submit(&ring);
    }
    io_uring_cqe* cqe = nullptr;
    if (io_uring_wait_cqe(&ring, &cqe) != 0) continue;
    if (cqe->res != static_cast<int>(block)) {
      error = cqe->res < 0 ? -cqe->res : EIO;
    }
    io_uring_cqe_seen(&ring, cqe);
    ended += block;
  }
  io_uring_queue_exit(&ring);
  if (error == 0) return absl::OkStatus();
  return ErrnoStatus(error, is_write ? "write" : "read", "in blocks");
}

}  // namespace holdfast::ckpt

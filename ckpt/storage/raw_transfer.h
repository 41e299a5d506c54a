// ckpt/storage/raw_transfer.h: the plainest io_uring loop there can be, which
// UringStorage is measured against. Knows nothing of Storage. Any thread.

#ifndef HOLDFAST_CKPT_STORAGE_RAW_TRANSFER_H_
#define HOLDFAST_CKPT_STORAGE_RAW_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace holdfast::ckpt {

// Moves `size` bytes from `offset` of `fd`, in order, `depth` blocks in flight,
// and returns when all are done: what the device gives to a loop that does
// nothing else. The blocks walk round `memory`. Short transfers are errors. For
// measurements; sets up a ring of its own.
absl::Status RawUringTransfer(int fd, bool is_write,
                              std::span<std::byte> memory, uint64_t offset,
                              uint64_t size, size_t block, uint32_t depth);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_RAW_TRANSFER_H_

// ckpt/session/load_staging.h: loaded bytes on their way into a device.
//
// Pieces of the state come in the order of files, of any size, each byte once.
//
//   large   copied to the device straight from the memory it was read into,
//           which is lent until the copy has passed
//   small   gathered in windows of 1 MiB of the regions, which are written back
//           whole when another window needs the memory, or at the end; a window
//           whose other bytes must stay is fetched from the device first
//
// The copies run beside the next reads, checksums and messages. Only a window
// that is fetched, or taken from another one, is waited for: some tens of
// microseconds on a bus that is an order faster than the disk.
//
// Memory: the save's arena, which is idle during a load: up to 64 MiB for reads
//     and as much for windows. Thread: the one that polls the load.

#ifndef HOLDFAST_CKPT_SESSION_LOAD_STAGING_H_
#define HOLDFAST_CKPT_SESSION_LOAD_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/snapshot/async_copier.h"

namespace holdfast::ckpt {

class LoadStaging {
 public:
  static constexpr uint64_t kBytesMin = uint64_t{4} << 20;

  // `memory` (at least kBytesMin) is the copier's; both outlive this. Of the
  // regions only the sizes count.
  LoadStaging(AsyncCopier* copier, std::span<std::byte> memory,
              std::span<const std::span<std::byte>> regions);

  // Where to read into, and in what pieces.
  std::span<std::byte> read_memory() const { return read_memory_; }
  uint64_t read_bytes() const { return read_bytes_; }

  // Bytes from `offset` on of a region. Those in read_memory() stay until
  // last_event(), as it is then, has passed; others are copied before it
  // returns.
  void Put(uint32_t region, uint64_t offset, std::span<const std::byte> bytes);

  uint64_t last_event() const { return last_event_; }
  bool Passed(uint64_t event) { return copier_->Passed(event); }

  // All that was put is in the device, or the device has failed (kInternal).
  // Blocks for that. What follows is another load.
  absl::Status Finish();

 private:
  struct Window {
    std::span<std::byte> memory;
    uint32_t region = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;  // 0: holds nothing
    bool dirty = false;
    uint64_t used = 0;  // when it was last, counted
  };

  Window* Find(uint32_t region, uint64_t offset);
  // The window that begins there, in memory. `fetch`: with what the device has.
  Window& Bring(uint32_t region, uint64_t offset, bool fetch);
  void WriteBack(Window& window);
  bool Lendable(std::span<const std::byte> bytes) const;

  AsyncCopier* const copier_;
  std::vector<uint64_t> region_bytes_;
  std::span<std::byte> read_memory_;
  uint64_t read_bytes_ = 0;
  std::vector<Window> windows_;
  Window* newest_ = nullptr;
  uint64_t uses_ = 0;
  uint64_t last_event_ = 0;  // 0: nothing was copied yet
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_LOAD_STAGING_H_

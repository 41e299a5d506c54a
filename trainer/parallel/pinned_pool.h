// trainer/parallel/pinned_pool.h: pinned memory in pieces that are lent, come
// back when the device is through with them, and are lent again.
//
// Thread: one at a time. Memory: grows to what is lent at once.

#ifndef HOLDFAST_TRAINER_PARALLEL_PINNED_POOL_H_
#define HOLDFAST_TRAINER_PARALLEL_PINNED_POOL_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/base/status_macros.h"
#include "kernels/device.h"

namespace holdfast::trainer {

class PinnedPool {
 public:
  struct Piece {
    kernels::OwnedBuffer memory;
    kernels::Event last_use = kernels::Event::kPassed;
    bool lent = false;

    // The first `bytes` of it.
    kernels::Buffer Part(size_t bytes) const {
      return memory.buffer().Part(0, bytes);
    }
  };

  explicit PinnedPool(kernels::Device& device) : device_(device) {}
  ~PinnedPool() {
    for (const auto& piece : pieces_) device_.Sync(piece->last_use);
  }
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // At least `bytes` that nobody uses: the smallest free piece that is large
  // enough. Waits for its last use.
  absl::StatusOr<Piece*> Take(size_t bytes) {
    Piece* best = nullptr;
    for (const auto& piece : pieces_) {
      if (piece->lent || piece->memory.buffer().bytes < bytes) continue;
      if (best == nullptr ||
          piece->memory.buffer().bytes < best->memory.buffer().bytes) {
        best = piece.get();
      }
    }
    if (best == nullptr) {
      auto made = std::make_unique<Piece>();
      HF_ASSIGN_OR_RETURN(
          made->memory,
          kernels::AllocateOwned(device_, kernels::MemorySpace::kPinned,
                                 std::max(bytes, kPieceBytesMin)));
      best = made.get();
      pieces_.push_back(std::move(made));
    }
    device_.Sync(best->last_use);
    best->lent = true;
    return best;
  }

  // Until `last_use` has passed the device may touch it.
  void Return(Piece* piece, kernels::Event last_use) {
    piece->last_use = last_use;
    piece->lent = false;
  }

 private:
  static constexpr size_t kPieceBytesMin = size_t{64} << 10;

  kernels::Device& device_;
  std::vector<std::unique_ptr<Piece>> pieces_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_PINNED_POOL_H_

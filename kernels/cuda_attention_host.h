// kernels/cuda_attention_host.h: runs attention's kernels on the host, for
// tests (kernels/cuda_warp_host.h, kernels/cuda_host_block.h).

#ifndef HOLDFAST_KERNELS_CUDA_ATTENTION_HOST_H_
#define HOLDFAST_KERNELS_CUDA_ATTENTION_HOST_H_

#include <cstdint>

#include "kernels/cuda_attention.h"
#include "kernels/cuda_host_block.h"
#include "kernels/cuda_warp.h"

namespace holdfast::kernels {

// What the warps of a launch did.
struct WarpCounts {
  int64_t launches = 0;
  int64_t accesses = 0;   // Of shared memory, in passes.
  int64_t conflicts = 0;  // Turns that a bank kept others waiting.
  int64_t products = 0;   // Of 16 x 8 x 16.
};

struct AttentionHostRunner {
  HostOrder order = HostOrder::kForward;
  WarpCounts* counts = nullptr;  // Added to, where given.

  template <typename Kernel>
  void operator()(const Kernel& kernel, int64_t blocks) const {
    RunOnHost(kernel, blocks, order);
  }

  template <typename Kernel>
  void Warps(const Kernel& kernel) const {
    const AttentionGrid grid = kernel.Grid();
    const bool last_first = order == HostOrder::kBackward;
    for (int64_t i = 0; i < grid.x * grid.y; ++i) {
      const int64_t at = last_first ? grid.x * grid.y - 1 - i : i;
      SharedMemoryOnHost shared(Kernel::kSharedBytes);
      WarpBlock block(&shared, Kernel::Tiles::kWarps, last_first);
      kernel(block, static_cast<int>(at % grid.x),
             static_cast<int>(at / grid.x), static_cast<int>(grid.y));
      if (counts == nullptr) continue;
      counts->accesses += shared.accesses();
      counts->conflicts += shared.conflicts();
      counts->products += shared.products();
    }
    if (counts != nullptr) ++counts->launches;
  }
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_ATTENTION_HOST_H_

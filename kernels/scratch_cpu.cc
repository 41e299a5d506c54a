// kernels/scratch_cpu.cc: per-thread memory that outlives a call.

#include <atomic>
#include <cstdlib>

#include "kernels/check.h"
#include "kernels/matmul_tile.h"

namespace holdfast::kernels {
namespace {

std::atomic<size_t> scratch_bytes{0};

struct Slots {
  float* data[static_cast<int>(ScratchSlot::kCount)] = {};
  size_t bytes[static_cast<int>(ScratchSlot::kCount)] = {};

  ~Slots() {
    for (int slot = 0; slot < static_cast<int>(ScratchSlot::kCount); ++slot) {
      std::free(data[slot]);
      scratch_bytes.fetch_sub(bytes[slot], std::memory_order_relaxed);
    }
  }
};

thread_local Slots slots;

}  // namespace

float* ThreadScratch(ScratchSlot slot, size_t count) {
  constexpr size_t kAlignment = 4096;
  const int at = static_cast<int>(slot);
  const size_t wanted =
      (count * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  if (slots.bytes[at] < wanted) {
    std::free(slots.data[at]);
    slots.data[at] =
        static_cast<float*>(std::aligned_alloc(kAlignment, wanted));
    KERNEL_CHECK(slots.data[at] != nullptr, "no memory for %d bytes of scratch",
                 wanted);
    scratch_bytes.fetch_add(wanted - slots.bytes[at],
                            std::memory_order_relaxed);
    slots.bytes[at] = wanted;
  }
  return slots.data[at];
}

size_t MatmulScratchBytes() {
  return scratch_bytes.load(std::memory_order_relaxed);
}

}  // namespace holdfast::kernels

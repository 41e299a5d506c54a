// tests/support/fiber_block.cc: fibers on ucontext, and their turns.

#include "tests/support/fiber_block.h"

#include <ucontext.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace holdfast::kernels {
namespace {

// A kernel's frames are small, but for the sanitizer's.
constexpr size_t kStackBytes = 128 * 1024;

}  // namespace

struct Fibers::Fiber {
  int thread = 0;
  Fibers* owner = nullptr;
  Stop stop = Stop::kDone;
  ucontext_t own = {};
  ucontext_t back = {};  // Where it was resumed.
  std::unique_ptr<char[]> stack;
#ifdef __SANITIZE_ADDRESS__
  void* own_fake = nullptr;
  void* back_fake = nullptr;
  const void* back_bottom = nullptr;
  size_t back_bytes = 0;
#endif
};

Fibers::Fibers(int threads) : exchange_(static_cast<size_t>(threads) * 8) {
  for (int t = 0; t < threads; ++t) {
    fibers_.push_back(std::make_unique<Fiber>());
    fibers_.back()->thread = t;
    fibers_.back()->owner = this;
    fibers_.back()->stack.reset(new char[kStackBytes]);
  }
}

Fibers::~Fibers() = default;

void Fibers::Enter(unsigned high, unsigned low) {
  auto* const fiber = reinterpret_cast<Fiber*>(
      (static_cast<uintptr_t>(high) << 32) | static_cast<uintptr_t>(low));
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &fiber->back_bottom,
                                  &fiber->back_bytes);
#endif
  (*fiber->owner->body_)(fiber->thread);
  fiber->stop = Stop::kDone;
#ifdef __SANITIZE_ADDRESS__
  // Null: this fiber does not come back.
  __sanitizer_start_switch_fiber(nullptr, fiber->back_bottom,
                                 fiber->back_bytes);
#endif
  swapcontext(&fiber->own, &fiber->back);
}

void Fibers::Resume(Fiber& fiber) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&fiber.back_fake, fiber.stack.get(),
                                 kStackBytes);
#endif
  swapcontext(&fiber.back, &fiber.own);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fiber.back_fake, nullptr, nullptr);
#endif
}

void Fibers::Yield(Fiber& fiber, Stop stop) {
  fiber.stop = stop;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&fiber.own_fake, fiber.back_bottom,
                                 fiber.back_bytes);
#endif
  swapcontext(&fiber.own, &fiber.back);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fiber.own_fake, &fiber.back_bottom,
                                  &fiber.back_bytes);
#endif
}

void Fibers::SyncWarp(int thread) { Yield(*fibers_[thread], Stop::kWarp); }
void Fibers::SyncBlock(int thread) { Yield(*fibers_[thread], Stop::kBlock); }

// Until all its threads stand at a barrier of the block, or are done.
void Fibers::RunWarp(int warp, HostOrder order) {
  while (true) {
    Stop common = Stop::kReady;
    for (int i = 0; i < kWarpThreads; ++i) {
      const int lane = order == HostOrder::kForward ? i : kWarpThreads - 1 - i;
      Fiber& fiber = *fibers_[warp * kWarpThreads + lane];
      Resume(fiber);
      if (i == 0) common = fiber.stop;
      HF_CHECK(fiber.stop == common,
               "thread %d of a warp is at another barrier than its neighbours",
               fiber.thread);
    }
    if (common != Stop::kWarp) return;
  }
}

void Fibers::Run(const std::function<void(int)>& body, HostOrder order) {
  body_ = &body;
  for (const auto& fiber : fibers_) {
    getcontext(&fiber->own);
    fiber->own.uc_stack.ss_sp = fiber->stack.get();
    fiber->own.uc_stack.ss_size = kStackBytes;
    fiber->own.uc_link = nullptr;
    fiber->stop = Stop::kReady;
    const auto at = reinterpret_cast<uintptr_t>(fiber.get());
    makecontext(&fiber->own, reinterpret_cast<void (*)()>(&Fibers::Enter), 2,
                static_cast<unsigned>(at >> 32), static_cast<unsigned>(at));
  }
  const int warps = static_cast<int>(fibers_.size()) / kWarpThreads;
  while (true) {
    for (int i = 0; i < warps; ++i) {
      RunWarp(order == HostOrder::kForward ? i : warps - 1 - i, order);
    }
    const Stop common = fibers_[0]->stop;
    for (const auto& fiber : fibers_) {
      HF_CHECK(fiber->stop == common,
               "a barrier of the block that thread %d does not reach, or "
               "reaches alone",
               fiber->thread);
    }
    if (common == Stop::kDone) return;
  }
}

}  // namespace holdfast::kernels

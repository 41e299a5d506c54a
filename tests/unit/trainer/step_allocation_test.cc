// A step in the steady state allocates nothing: the program's operator new is
// replaced by one that counts, for the thread that asks it to, what our own
// code asks for. oneDNN makes small objects of its own for each product; they
// are not ours to avoid. Sanitizers bring an operator new of their own: the
// test is not for them.

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "ckpt/base/clock.h"
#include "gtest/gtest.h"
#include "tests/support/step_rig.h"
#include "trainer/parallel/inproc_collectives.h"

namespace {

thread_local bool counting = false;
thread_local int64_t allocations = 0;

// `caller` is an address in the code that called operator new.
bool IsOurs(void* caller) {
  Dl_info object;
  return dladdr(caller, &object) == 0 || object.dli_fname == nullptr ||
         std::strstr(object.dli_fname, "libdnnl") == nullptr;
}

void* CountedNew(size_t bytes, size_t alignment, void* caller) {
  if (counting && IsOurs(caller)) ++allocations;
  void* const data =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(bytes)
          : std::aligned_alloc(alignment,
                               (bytes + alignment - 1) / alignment * alignment);
  if (data == nullptr) std::abort();
  return data;
}

}  // namespace

void* operator new(size_t bytes) {
  return CountedNew(bytes, 1, __builtin_return_address(0));
}
void* operator new[](size_t bytes) {
  return CountedNew(bytes, 1, __builtin_return_address(0));
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return CountedNew(bytes, static_cast<size_t>(alignment),
                    __builtin_return_address(0));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return CountedNew(bytes, static_cast<size_t>(alignment),
                    __builtin_return_address(0));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete(void* data, size_t, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete[](void* data, size_t, std::align_val_t) noexcept {
  std::free(data);
}

namespace holdfast::trainer {
namespace {

using tests::RunOptions;
using tests::TinyBatch;

// One batch for every step, made beforehand.
class FixedSource : public MicrobatchSource {
 public:
  explicit FixedSource(const ModelConfig& model) : batch_(model, 1, 1) {}
  absl::StatusOr<Microbatch> Get(int64_t) override { return batch_.view(); }
  int64_t counting() const { return batch_.counting(); }

 private:
  TinyBatch batch_;
};

TEST(StepAllocationTest, TheThirdStepAllocatesNothing) {
  RunOptions options;
  options.model = tests::TinyModel(/*tied=*/true);
  options.compute = ComputeType::kBf16;
  const auto layout = tests::LayoutOf(options);
  const absl::Status status = RunInprocRanks(1, [&](Collectives& world) {
    auto mesh = SplitMesh(world, options.mesh);
    if (!mesh.ok()) return mesh.status();
    const auto device = kernels::NewCpuDevice();
    StepOptions step_options = tests::StepOptionsOf(options, *layout);
    step_options.mesh = &*mesh;
    step_options.device = device.get();
    step_options.clock = &ckpt::RealClock();
    auto runner = StepRunner::Create(step_options);
    if (!runner.ok()) return runner.status();
    if (auto initialised = (*runner)->Initialise(1); !initialised.ok()) {
      return initialised;
    }
    FixedSource source(options.model);
    for (int64_t step = 1; step <= 4; ++step) {
      allocations = 0;
      counting = true;
      auto result = (*runner)->RunStep(step, 8 * source.counting(), source,
                                       /*gate=*/nullptr);
      counting = false;
      if (!result.ok()) return result.status();
      if (step >= 3) {
        EXPECT_EQ(allocations, 0) << "step " << step;
      }
    }
    allocations = 0;
    counting = true;
    const auto one = std::make_unique<TinyBatch>(options.model, 1, 1);
    counting = false;
    EXPECT_GT(allocations, 0) << "the count counts";
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace holdfast::trainer

#endif  // no sanitizer

// tests/unit/ckpt/storage/allocation_test.cc: once a file is open, writing and
// reading it allocates nothing. Counts every operator new of this program.

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/storage/blocking.h"
#include "ckpt/storage/posix_storage.h"
#include "ckpt/storage/uring_storage.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

// The sanitizers bring operators of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

void* operator new(size_t size) {
  ++allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace holdfast::ckpt {
namespace {

constexpr FileId kFile{1};

// Writes 64 blocks, syncs, and answers all; how much was allocated.
int64_t AllocationsOfAWrite(Storage& storage, const AlignedBuffer& data,
                            std::vector<Completion>& answers) {
  const int64_t before = allocations;
  for (uint64_t i = 0; i < 32; ++i) {
    storage.Write(kFile, i * 4096, data.span(), OpTag{i});
  }
  storage.Sync(kFile, OpTag{100});
  for (size_t answered = 0; answered < 33;) {
    const size_t polled = storage.Poll(answers);
    for (size_t i = 0; i < polled; ++i) EXPECT_TRUE(answers[i].status.ok());
    answered += polled;
    if (polled == 0) storage.WaitForCompletion(10);
  }
  return allocations - before;
}

void ExpectSteadyStateWithoutAllocations(Storage& storage) {
  const AlignedBuffer data(4096);
  std::vector<Completion> answers(16);
  ASSERT_TRUE(Blocking(storage).Create("f", kFile, 32 * 4096).ok());
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(AllocationsOfAWrite(storage, data, answers), 0);
  }
}

TEST(AllocationTest, PosixWritesWithoutAllocating) {
  const tests::TempDir dir;
  const auto storage = *OpenPosixStorage({.root = dir.path()});
  ExpectSteadyStateWithoutAllocations(*storage);
}

TEST(AllocationTest, UringWritesWithoutAllocating) {
  if (!ProbeUring().ok()) GTEST_SKIP() << ProbeUring();
  const tests::TempDir dir;
  const auto storage = *OpenUringStorage({.root = dir.path()});
  ExpectSteadyStateWithoutAllocations(*storage);
}

}  // namespace
}  // namespace holdfast::ckpt

#endif

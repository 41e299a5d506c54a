// ckpt/base/aligned_buffer.cc: aligned memory from anonymous mappings, which
// arrive zeroed and are given back to the system at once when freed.

#include "ckpt/base/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdint>

#include "ckpt/base/check.h"

namespace holdfast::ckpt {

void PreferHugePages(void* memory, size_t bytes) {
  // Refused by kernels without them, which is no error.
  if (bytes >= kHugePage) ::madvise(memory, bytes, MADV_HUGEPAGE);
}

AlignedBuffer::AlignedBuffer(size_t size) : size_(size) {
  if (size == 0) return;
  const size_t wanted = RoundUp(size, kAlignment);
  // Mappings begin on any page: one alignment more, and what is around is given
  // back.
  const size_t alignment = AlignmentFor(wanted);
  const size_t slack = alignment - kAlignment;
  void* const mapped = ::mmap(nullptr, wanted + slack, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  HF_CHECK(mapped != MAP_FAILED, "no memory for a buffer of %d bytes", size);
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  const size_t before = RoundUp(begin, alignment) - begin;
  data_ = static_cast<std::byte*>(mapped) + before;
  if (before > 0) ::munmap(mapped, before);
  if (before < slack) ::munmap(data_ + wanted, slack - before);
  PreferHugePages(data_, wanted);
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) ::munmap(data_, RoundUp(size_, kAlignment));
}

}  // namespace holdfast::ckpt
